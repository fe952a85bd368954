# SPDX-License-Identifier: Apache-2.0
"""Commands that are killed before one of their changes to a folder, or within a file: by count, and not by time.

Each command runs in a process that was forked when all that it imports was there, so a kill takes as long as the
command. This module is also the program that forks.
"""

import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import selection
import warm

_CHANGES = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.chmod",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TIMEOUT = 300  # seconds


@dataclass(frozen=True)
class Killed:
    """What a killed command left.

    Args:
        place: The copy of the folder that it worked on.
        at: The change before which it was killed, as Python's audit events are named; "size" for within a file; "" for
            the one that was not killed.
    """

    place: Path
    at: str


def kill(
    argv: Sequence[str], before: Path, folder: Path, *, most: int = 10**6, sizes: Sequence[int] = (),
    prepare: str = "",
) -> list[Killed]:  # fmt: skip
    """Run a command of qeff-zoo on copies of a folder: once to its end, and then killed in each at another moment.

    Args:
        argv: Its arguments. `{place}` in them stands for the copy, in which the store is `home`.
        before: What is copied.
        folder: Where the copies go; absent.
        most: At how many changes it is killed; at a tenth of them unless QEFF_ZOO_TEST_EVERY=1. Where there are more,
            at one of each kind, and others drawn.
        sizes: It is also killed whenever a file would get longer than this.
        prepare: Name of a helper module whose function `begin` prepares each process for its copy.
    """
    order = {
        "argv": [*argv], "before": str(before), "folder": str(folder), "sizes": [*sizes],
        "most": most, "share": 1 if selection.EVERY else selection.TENTH, "prepare": prepare,
    }  # fmt: skip
    done = subprocess.run(
        [warm.PYTHON.executable, __file__],
        input=json.dumps(order), capture_output=True, text=True, timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Killed(Path(place), at) for place, at in json.loads(done.stdout)]


def empty(folder: Path) -> Path:
    """Make a folder to begin with in which there is no store yet."""
    (folder / "nothing").mkdir()
    return folder / "nothing"


class _Runs:
    """Runs of one command.

    Args:
        order: See `kill`.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._argv, self._before = order["argv"], order["before"]
        self._folder, self._prepare = Path(order["folder"]), order["prepare"]
        self._most, self._share, self._sizes = order["most"], order["share"], order["sizes"]
        self._folder.mkdir()

    def all(self) -> list[tuple[str, str]]:
        whole = self._folder / "whole"
        changes = self._run(whole)
        for name in json.loads(whole.with_suffix(".modules").read_bytes()):
            with suppress(Exception):  # not every one can be imported by its name
                importlib.import_module(name)
        found = [(str(whole), "")]
        for number in _drawn(changes, self._most, self._share):
            place, kind = self._folder / f"change-{number:03}", changes[number - 1]
            nth = changes[:number].count(kind)  # threads make changes of several kinds in any order
            found += [(str(place), at) for at in self._run(place, at=(kind, nth))]
        for size in self._sizes:
            place = self._folder / f"size-{size}"
            self._run(place, size=size)
            found.append((str(place), "size"))
        return found

    def _run(self, place: Path, *, at: tuple[str, int] | None = None, size: int = 0) -> list[str]:
        """Run the command; give its changes, or the one before which it was killed."""
        shutil.copytree(self._before, place)
        log, changes = place.with_suffix(".log"), place.with_suffix(".changes")
        child = os.fork()
        if not child:
            self._become(place, log, changes, at, size)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        expected = -signal.SIGKILL if at else -signal.SIGXFSZ if size else 0
        # Threads do not always make the same changes: the last may not come.
        assert code in (expected, 0 if at else expected), (place.name, code, log.read_text())
        return changes.read_text().split()

    def _become(
        self, place: Path, log: Path, changes: Path, at: tuple[str, int] | None, size: int
    ) -> None:
        from qeff_zoo import cli

        os.environ["QEFF_HOME"] = str(place / "home")
        sys.stdout = sys.stderr = log.open("w")
        settings = os.open(changes, os.O_CREAT | os.O_WRONLY)
        if size:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if self._prepare:
            importlib.import_module(self._prepare).begin(place)
        _watch(f"{place}/", at, settings)
        code = cli.main([part.replace("{place}", str(place)) for part in self._argv])
        sys.stdout.flush()
        if not at and not size:
            place.with_suffix(".modules").write_text(json.dumps([*sys.modules]))
        os._exit(code)


def _watch(prefix: str, at: tuple[str, int] | None, settings: int) -> None:
    """Report each change below a folder; for a kind and a number, only that one, and die before it."""
    counts = Counter[str]()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not (arguments[2] and arguments[2] & _WRITES):
                return
        elif event not in _CHANGES:
            return
        path = str(arguments[0])
        if event in ("os.remove", "os.rmdir") and arguments[1] >= 0:
            path = str(Path(f"/proc/self/fd/{arguments[1]}").readlink() / path)
        if not path.startswith(prefix):
            return
        counts[event] += 1
        now = at == (event, counts[event])
        if now or not at:
            os.write(settings, f"{event}\n".encode())
        if now:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _drawn(changes: list[str], most: int, share: int) -> list[int]:
    """Choose at which changes to kill."""
    everyone = range(1, len(changes) + 1)
    count = -(-min(len(changes), most) // share)
    if len(changes) <= count:
        return [*everyone]
    dice = random.Random(selection.seed("kills"))
    if not most:
        return []
    chosen = {changes.index(kind) + 1 for kind in set(changes)} | {len(changes)}
    others = [number for number in everyone if number not in chosen]
    return sorted(chosen.union(dice.sample(others, max(count - len(chosen), 0))))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_Runs(json.load(sys.stdin)).all()))
