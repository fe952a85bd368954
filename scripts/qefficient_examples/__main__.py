# SPDX-License-Identifier: Apache-2.0
"""`scripts/qefficient`: run each example script of a checkout of QEfficient, and record what came of it."""

import argparse
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qefficient_examples import inside
from qefficient_examples.checkpoints import CHECKPOINTS, provide
from qefficient_examples.rewriting import rewrite
from qefficient_examples.scripts import (
    ARGUMENTS,
    COMPILED,
    NEEDED,
    NOT_SCRIPTS,
    OWN_FAULTS,
    TOOLS,
)
from qefficient_examples.table import RECORD

_TAIL = 40
#: Errors of imports that no extra of qeff-zoo provides, and of transformers without them.
_LACKING = re.compile(
    r"named '(qwen_vl_utils|torchvision)|requires (`torchvision`|the Torchvision)"
)
_ERROR = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Exit|Interrupt))(?:: (.*))?$")


def scripts_of(checkout: Path) -> Iterator[str]:
    """Yield the example scripts of a checkout, and its tools for users, by their paths in it."""
    for path in sorted((checkout / "examples").rglob("*.py")):
        name = path.relative_to(checkout).as_posix()
        if path.name != "__init__.py" and name not in NOT_SCRIPTS:
            yield name
    yield from (name for name in TOOLS if (checkout / name).is_file())


def prepare(checkout: Path, work: Path) -> None:
    """Copy examples, tools and what they load, with the import replaced."""
    for folder in ("examples", "scripts", "tests/utils"):
        for path in (checkout / folder).rglob("*"):
            target = work / "checkout" / path.relative_to(checkout)
            if path.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                target.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
            elif path.suffix in (".yaml", ".yml", ".json", ".txt"):
                target.write_bytes(path.read_bytes())
    beside = work / "examples"  # some scripts name files from the checkout's root
    if not beside.exists():
        beside.symlink_to(work / "checkout" / "examples")


def run(name: str, work: Path, seconds: int) -> dict[str, Any]:
    """Run one script; return its row.

    Args:
        name: Path in the checkout.
        work: Folder of the rewritten scripts and the checkpoints.
        seconds: Time limit.
    """
    if name in OWN_FAULTS:
        return {
            "script": name,
            "result": "own code",
            "reason": OWN_FAULTS[name],
            "seconds": 0.0,
        }
    script = work / "checkout" / name
    text = script.read_text(encoding="utf-8")
    beside = "".join(path.read_text(encoding="utf-8") for path in script.parent.glob("*.py"))
    needed = NEEDED.get(name, ())
    for checkpoint in CHECKPOINTS:
        if (
            any(f"{quote}{checkpoint}{quote}" in text for quote in "\"'")
            or f'"{checkpoint}"' in beside
            or checkpoint in needed
        ):
            provide(checkpoint, work)
    log = work / "logs" / f"{name.replace('/', '__')}.log"
    log.parent.mkdir(exist_ok=True)
    begun = time.monotonic()
    argv = [str(script), *shlex.split(ARGUMENTS.get(name, ""))]
    code = _forked(argv, work, log, seconds, COMPILED.get(name))
    row = _row(code, log.read_text(encoding="utf-8", errors="replace"), work, seconds)
    return {"script": name, **row, "seconds": round(time.monotonic() - begun, 1)}


def _forked(
    argv: list[str],
    work: Path,
    log: Path,
    seconds: int,
    compiled: tuple[str, Mapping[str, int]] | None,
) -> int | None:
    """Run a script in a copy of this process, which has imported what takes long; return its exit code.

    Args:
        argv: Path of the script, and its arguments.
        work: Current folder of the script.
        log: File of what it prints.
        seconds: Time limit; None is returned after it.
        compiled: Model that is compiled before, and the arguments of `compile`.
    """
    child = os.fork()
    if not child:
        os.setsid()
        with log.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.chdir(work)
        os.environ["QEFF_HOME"] = str(work / "store")
        code = inside.CRASHED
        try:
            if compiled:
                argv = [one.replace("{qpc_path}", inside.compiled(*compiled)) for one in argv]
            sys.argv = [inside.__file__, *argv]
            code = inside.main()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for _ in range(seconds * 5):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _row(code: int | None, printed: str, work: Path, seconds: int) -> dict[str, str]:
    if code == 0:
        return {"result": "runs", "reason": ""}
    if code is None:
        return {"result": "too slow", "reason": f"stopped after {seconds} s"}
    reason = ""
    for line in reversed(printed.splitlines()[-_TAIL:]):
        if line.startswith('{"type": '):
            error = json.loads(line)
            reason = f"{error['type']}: {error['message']}"
            break
        if _ERROR.match(line):
            reason = line
            break
    reason = reason or (printed.strip().splitlines() or ["no output"])[-1]
    result = "refused" if code == inside.REFUSED else "fails"
    result = "lacks" if _LACKING.search(reason) else result
    return {"result": result, "reason": reason.replace(f"{work}/", "")}


def main() -> int:
    """Run the scripts that are asked for, and keep each row as soon as it is known."""
    parser = argparse.ArgumentParser(prog="scripts/qefficient", description=__doc__)
    parser.add_argument(
        "checkout", type=Path, help="folder with QEfficient's examples/ and scripts/"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="TEXT",
        help="scripts whose path has one of these",
    )
    parser.add_argument(
        "--result",
        metavar="R",
        help="again those with this result alone: refused, 'own code', lacks, fails or 'too slow'",
    )
    parser.add_argument("--again", action="store_true", help="also those that are recorded")
    parser.add_argument(
        "--seconds", type=int, default=600, metavar="N", help="limit of one script (default: 600)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("qefficient-work"),
        metavar="DIR",
        help="folder of all that is written",
    )
    parser.add_argument(
        "--record", type=Path, default=RECORD, metavar="FILE", help="JSON file of the rows"
    )
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    prepare(arguments.checkout, work)
    known = (
        {row["script"]: row for row in json.loads(arguments.record.read_bytes())}
        if arguments.record.exists()
        else {}
    )
    every = [*scripts_of(arguments.checkout)]
    rows = {name: known[name] for name in every if name in known}
    chosen = [
        name for name in every
        if any(text in name for text in arguments.only)
        and (arguments.again or name not in rows or rows[name]["result"] == arguments.result)
    ]  # fmt: skip
    inside.warm_up()
    for name in chosen:
        row = run(name, work, arguments.seconds)
        rows[name] = row
        print(
            f"{row['result']:9} {row['seconds']:6.1f} s  {name}  {row['reason'][:160]}",
            flush=True,
        )
        ordered = [rows[one] for one in every if one in rows]
        arguments.record.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    counts = {
        result: sum(row["result"] == result for row in rows.values())
        for result in ("runs", "refused", "own code", "lacks", "fails", "too slow")
    }
    print(", ".join(f"{count} {result}" for result, count in counts.items()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
