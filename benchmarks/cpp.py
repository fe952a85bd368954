# SPDX-License-Identifier: Apache-2.0
"""What a token costs beside the graph, in C++ (cpp/) and in Python: the host's time of greedy decoding.

    python benchmarks/cpp.py cpp/build/qeff-run [--repeat 7]

Both open the same int8 package of examples/tiny-llama, whose graph is so small that the host shows, on one thread, and
take turns; both read a text and make text of every token. The graph's time is that of ONNX Runtime's `run` alone,
measured in either by its own clock.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from engines import qeff_zoo as python_engine
from measuring import machine

import qeff_zoo

_MODEL = Path(__file__).parent.parent / "examples" / "tiny-llama"
_PROMPT = "class socket.SocketIO\nA socket object, which "
_TOKENS = 400


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", help="qeff-run, built")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="turns (default: 7)")
    arguments = parser.parse_args()
    facts = machine(())
    package = qeff_zoo.build(_MODEL, weights="int8", ctx_len=512)
    turn: Any = python_engine(str(package.path), 1)  # takes texts as well
    found: dict[str, list[dict[str, Any]]] = {"python": [], "c++": []}
    for number in range(arguments.repeat + 1):  # the first one warms up
        print(f"turn {number}", file=sys.stderr)
        found["python"].append(turn([_PROMPT], _TOKENS))
        found["c++"].append(_in_cpp(arguments.program, package.path))
    same = all(
        one["tokens"] == found["python"][0]["tokens"] for each in found.values() for one in each
    )
    figures = {
        name: {
            "host_us_per_token": round(1e6 * median(run["host_s_per_call"] for run in runs[1:]), 1),
            "ms_per_token": round(1e3 * median(run["total_s"] / _TOKENS for run in runs[1:]), 3),
        }
        for name, runs in found.items()
    }
    ratio = figures["python"]["host_us_per_token"] / figures["c++"]["host_us_per_token"]
    answer = {
        "machine": facts,
        "tokens": _TOKENS,
        "turns": arguments.repeat,
        "engines": figures,
        "ratios": {"host time, python to c++": round(ratio, 1)},
        "same_answers": same,
    }
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _in_cpp(program: str, package: Path) -> dict[str, Any]:
    words = ["--prompt", _PROMPT, "--generation-len", str(_TOKENS)]
    command = [program, str(package), *words, "--ignore-eos", "--threads", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    host = found["total_s"] - found["graph_s"]
    return {
        "host_s_per_call": host / _TOKENS,
        "total_s": found["total_s"],
        "tokens": [found["token_ids"]],
    }


if __name__ == "__main__":
    main()
