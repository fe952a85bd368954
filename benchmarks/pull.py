# SPDX-License-Identifier: Apache-2.0
"""Claim: a pull, every byte of it verified, is as fast as a plain download of the same files.

A Hub on the loopback, the one of the tests in a process of its own, serves packages of random bytes. Our pull and
huggingface_hub's `snapshot_download`, by plain HTTP, fetch the same repository in turn, each time in a process of its
own with nothing cached; measured is the call alone. Prints JSON: seconds and CPU seconds of each turn, and the ratio of
the medians, above 1 where ours is faster, or takes less of the processor.

    python benchmarks/pull.py [--repeat 5] [--cases one several small] [--folder DIR]

The folder is in memory (/dev/shm) where there is that: a slow disk would hide what either of them costs.
"""

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import machine

_REPO = "acme/zoo"
_LEAST_RATIO = 1.0
#: Files of weights that a package has, and bytes of each.
_CASES = {"one": (1, 1 << 30), "several": (16, 64 << 20), "small": (500, 64 << 10)}
_TESTS = Path(__file__).parent.parent / "tests" / "helpers"


def main() -> None:
    """Measure every case and print the figures."""
    memory = Path("/dev/shm")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="turns of each; the median counts")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument(
        "--folder", type=Path, default=memory if memory.is_dir() else None, help="where to work"
    )
    parser.add_argument("--serve", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fetch", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
    elif arguments.fetch:
        json.dump(fetch(*arguments.fetch), sys.stdout)
    else:
        facts = machine(["qeff-zoo", "huggingface_hub", "httpx", "httpx2"])
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            found = {
                name: compare(Path(folder), *_CASES[name], arguments.repeat)
                for name in arguments.cases
            }
        answer = {"machine": facts, "folder": str(arguments.folder), "cases": found}
        json.dump(answer, sys.stdout, indent=1)
        sys.stdout.write("\n")


def serve(count: int, size: int) -> None:
    """Serve a package of so many files of so many bytes; print where, and go on until stdin ends."""
    sys.path.insert(0, str(_TESTS))
    hub = importlib.import_module("local_hub").LocalHub().start()
    builder = importlib.import_module("remote_builder")
    with tempfile.TemporaryDirectory() as folder:
        files = {f"weights/{n}.bin": os.urandom(size) for n in range(count)}
        hub.commit(_REPO, builder.remote(builder.make(Path(folder), files)))
    print(hub.endpoint, flush=True)
    sys.stdin.read()


@contextmanager
def served(count: int, size: int) -> Iterator[str]:
    """Run a Hub in a process of its own; give its address."""
    command = [sys.executable, __file__, "--serve", str(count), str(size)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def compare(folder: Path, count: int, size: int, repeat: int) -> dict[str, Any]:
    """Let both fetch the package in turn."""
    turns: dict[str, list[dict[str, float]]] = {"pull": [], "snapshot_download": []}
    with served(count, size) as endpoint:
        for turn in range(repeat):
            for who in sorted(turns, reverse=bool(turn % 2)):
                turns[who].append(run(who, endpoint, folder / "work"))
    medians = {
        who: statistics.median(one["seconds"] for one in found) for who, found in turns.items()
    }
    ratio = medians["snapshot_download"] / medians["pull"]
    used = {who: statistics.median(one["cpu_seconds"] for one in turns[who]) for who in turns}
    return {
        "files": count,
        "bytes_of_each": size,
        **turns,
        "megabytes_per_second": {
            who: round(count * size / 1e6 / took) for who, took in medians.items()
        },
        "ratio": round(ratio, 3),
        "cpu_ratio": round(used["snapshot_download"] / used["pull"], 3),
        "limit": _LEAST_RATIO,
        "kept": ratio >= _LEAST_RATIO,
    }


def run(who: str, endpoint: str, work: Path) -> dict[str, float]:
    """Fetch once, with nothing cached, in a process of its own."""
    work.mkdir()
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(work / "hf"),
        "QEFF_HOME": str(work / "store"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, __file__, "--fetch", who, str(work)]
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    shutil.rmtree(work)
    found: dict[str, float] = json.loads(done)
    return found


def fetch(who: str, work: str) -> dict[str, float]:
    """Time one download in this process, its imports left out."""
    import huggingface_hub

    from qeff_zoo.hub import pull

    huggingface_hub.get_session()
    begun, used = time.perf_counter(), time.process_time()
    if who == "pull":
        pulled = pull.pull(f"hf://{_REPO}")
        assert not pulled.hit
    else:
        huggingface_hub.snapshot_download(_REPO, cache_dir=work)
    return {
        "seconds": round(time.perf_counter() - begun, 3),
        "cpu_seconds": round(time.process_time() - used, 3),
    }


if __name__ == "__main__":
    main()
