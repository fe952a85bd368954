# SPDX-License-Identifier: Apache-2.0
"""What a process takes, measured from outside: time, peak memory, bytes written; and the facts of the machine."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_SAMPLING = 0.02  # seconds between looks at a process


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one process took.

    Args:
        cpu_seconds: User and system time.
        wall_seconds: From start to end.
        peak_rss_bytes: Highest resident set, mapped files included.
        peak_anonymous_bytes: Highest anonymous memory seen, looking every 20 ms.
        written_bytes: Handed to the disk.
        answer: The last line of its output, if that is a JSON object.
    """

    cpu_seconds: float
    wall_seconds: float
    peak_rss_bytes: int
    peak_anonymous_bytes: int
    written_bytes: int
    answer: Mapping[str, Any]


def measure(command: Sequence[str], environment: Mapping[str, str]) -> Measured:
    """Run a command and watch it.

    Args:
        command: With arguments.
        environment: Of the process.

    Raises:
        RuntimeError: It failed; with the end of what it had to say.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=dict(environment))
        folder, anonymous = Path(f"/proc/{process.pid}"), 0
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            anonymous = max(anonymous, _number(folder / "status", "RssAnon") * 1024)
            time.sleep(_SAMPLING)
        wall = time.perf_counter() - begun
        written = _number(folder / "io", "write_bytes")  # final, since it has ended
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{command} ended with {process.returncode}:\n{errors.read()[-4000:]}"
            )
        lines = output.read().splitlines()
    return Measured(
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
        wall_seconds=round(wall, 2),
        peak_rss_bytes=usage.ru_maxrss * 1024,
        peak_anonymous_bytes=anonymous,
        written_bytes=written,
        answer=json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {},
    )


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Describe the machine, how busy it is, and the versions of packages."""
    processor = re.search(
        r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    return {
        "processor": processor.group(1) if processor else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _number(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def print_by_size(
    description: str,
    packages: Sequence[str],
    measure_one: Callable[[argparse.Namespace, str], Mapping[str, Any]],
) -> None:
    """Read the options of a benchmark of prompts, measure each size that is asked for, and print JSON.

    Args:
        description: Of the benchmark, for --help.
        packages: Whose versions are said.
        measure_one: Takes the options and the name of a size, returns its figures.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sizes", nargs="+", choices=["160m", "1.2b"], default=["160m", "1.2b"])
    parser.add_argument("--weights", choices=["fp32", "int8", "int4"], default="int4")
    parser.add_argument("--prompt-len", type=int, default=512, metavar="TOKENS")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(packages)
    cases = {size: measure_one(arguments, size) for size in arguments.sizes}
    said = {"weights": arguments.weights, "prompt_len": arguments.prompt_len}
    json.dump({"machine": facts, **said, "cases": cases}, sys.stdout, indent=1)
    sys.stdout.write("\n")
