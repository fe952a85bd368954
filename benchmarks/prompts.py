# SPDX-License-Identifier: Apache-2.0
"""Claim: target `openvino` reads prompts at least 1.5 times as fast as `ort`, and decodes at least 0.95 times as fast.

Builds a Llama of random weights for both, opens each in a process of its own, and lets them take turns. Judged is CPU
time on one thread, since others on the machine disturb it less. Prints JSON.

    python benchmarks/prompts.py [--sizes 160m 1.2b] [--weights int4] [--repeat 5]
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import machine
from random_llama import SIZES, make
from run import build

_TARGETS = ("ort", "openvino")
_PACKAGES = ("qeff-zoo", "onnxruntime", "openvino")
_PROMPT_LEN, _NEW = 128, 17
_LEAST = {"prefill": 1.5, "decode": 0.95}


def main() -> None:
    """Measure what was asked for and print the figures."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=["160m", "1.2b"], default=["160m", "1.2b"])
    parser.add_argument("--weights", choices=["int8", "int4"], default="int4")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(_PACKAGES)
    cases = {size: compare(arguments, size) for size in arguments.sizes}
    json.dump(
        {"machine": facts, "weights": arguments.weights, "cases": cases}, sys.stdout, indent=1
    )
    sys.stdout.write("\n")


def serve(package: str) -> None:
    """Answer each prompt on stdin by what its first token and the others took, in seconds."""
    from qeff_zoo import load

    session: Any = load(package, threads=1)

    def seconds(prompt: list[int], count: int) -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        session.generate([prompt], generation_len=count, ignore_eos=True)
        return time.process_time() - cpu, time.perf_counter() - wall

    for line in sys.stdin:
        prompt = json.loads(line)
        first, every = seconds(prompt, 1), seconds(prompt, _NEW)
        decode = [(all_ - one) / (_NEW - 1) for one, all_ in zip(first, every, strict=True)]
        status = Path("/proc/self/status").read_text(encoding="ascii").split()
        peak = int(status[status.index("VmHWM:") + 1]) << 10
        answer = {"prefill": first, "decode": decode, "peak_rss_bytes": peak}
        print(json.dumps(answer), flush=True)


def compare(arguments: argparse.Namespace, size: str) -> dict[str, Any]:
    """Return the medians of both targets in turns, and their ratios."""
    make(arguments.cache / f"llama-{size}-0", SIZES[size], 0)
    processes = {}
    for target in _TARGETS:
        package = build(arguments.cache, size, arguments.weights, "--target", target)
        processes[target] = subprocess.Popen(
            [sys.executable, __file__, "serve", package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    turns: dict[str, list[dict[str, Any]]] = {target: [] for target in _TARGETS}
    draw = random.Random(size)
    for number in range(arguments.repeat + 1):  # the first is not counted
        prompt = [draw.randrange(2, SIZES[size].vocabulary) for _ in range(_PROMPT_LEN)]
        for target in _TARGETS[:: 1 if number % 2 else -1]:
            process = processes[target]
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(prompt) + "\n")
            process.stdin.flush()
            turns[target].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    found = {
        target: {
            f"{what}_{clock}_ms": round(
                1e3 * statistics.median(turn[what][place] for turn in some), 2
            )
            for what in _LEAST
            for place, clock in enumerate(("cpu", "wall"))
        }
        | {"peak_rss_bytes": some[-1]["peak_rss_bytes"]}
        for target, (_, *some) in turns.items()
    }
    ours, other = (found[target] for target in reversed(_TARGETS))
    ratios = {name: round(other[name] / ours[name], 3) for name in ours}
    limits = {
        what: {
            "value": ratios[f"{what}_cpu_ms"],
            "at_least": least,
            "within": ratios[f"{what}_cpu_ms"] >= least,
        }
        for what, least in _LEAST.items()
    }
    return {"targets": found, "ratios": ratios, "limits": limits}


if __name__ == "__main__":
    main()
