# SPDX-License-Identifier: Apache-2.0
"""Claim: target `openvino` reads prompts at least 1.5 times as fast as `ort`, and decodes at least 0.95 times as fast.

Builds a Llama of random weights for both, and for `ort` with weights w8a8 too, opens each in a process of its own, and
lets them take turns. Judged is CPU time on one thread, since others on the machine disturb it less. Prints JSON.

    python benchmarks/prompts.py [--sizes 160m 1.2b] [--weights int4] [--repeat 5] [--genai PYTHON DIR]

With `--genai`, OpenVINO GenAI of that Python takes its turns too, with DIR/160m and DIR/1.2b, which optimum-intel made
of the same checkpoints; reading prompts is then held against it as well.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import machine
from random_llama import SIZES, make
from run import Contender, Engine, build

_OPENVINO, _W8A8 = "openvino", "ort w8a8"
_GENAI = "openvino-genai"
_PACKAGES = ("qeff-zoo", "onnxruntime", "openvino")
_PROMPT_LEN, _NEW = 128, 17
_LEAST = {"ort": {"prefill": 1.5, "decode": 0.95}, _GENAI: {"prefill": 1.0}}


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=["160m", "1.2b"], default=["160m", "1.2b"])
    parser.add_argument("--weights", choices=["int8", "int4"], default="int4")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each")
    parser.add_argument("--genai", nargs=2, metavar=("PYTHON", "DIR"))
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(_PACKAGES)
    cases = {size: compare(arguments, size) for size in arguments.sizes}
    json.dump(
        {"machine": facts, "weights": arguments.weights, "cases": cases}, sys.stdout, indent=1
    )
    sys.stdout.write("\n")


def compare(arguments: argparse.Namespace, size: str) -> dict[str, Any]:
    """Return the medians of all engines in turns, and ratios to target `openvino`."""
    make(arguments.cache / f"llama-{size}-0", SIZES[size], 0)
    built = {
        "ort": (arguments.weights, "--target", "ort"),
        _OPENVINO: (arguments.weights, "--target", _OPENVINO),
        _W8A8: ("w8a8", "--target", "ort"),
    }
    field = [
        Contender(name=name, engine="stream", model=build(arguments.cache, size, *choices))
        for name, choices in built.items()
    ]
    if arguments.genai:
        python, folder = arguments.genai
        model = str(Path(folder, size))
        field.append(Contender(name=_GENAI, engine=_GENAI, model=model, python=python))
    engines = [Engine(one, 1) for one in field]
    turns: dict[str, list[dict[str, float]]] = {one.name: [] for one in field}
    draw = random.Random(size)
    for number in range(arguments.repeat + 1):  # the first is not counted
        prompt = [draw.randrange(2, SIZES[size].vocabulary) for _ in range(_PROMPT_LEN)]
        for engine in engines[:: 1 if number % 2 else -1]:
            turns[engine.name].append(engine.turn([prompt], _NEW))
    for engine in engines:
        engine.close()
    found = {name: _medians(some) for name, (_, *some) in turns.items()}
    ours = found.pop(_OPENVINO)
    ratios = {
        name: {what: round(other[what] / ours[what], 3) for what in ours}
        for name, other in found.items()
    }
    limits = {
        f"{what}, {name}": {
            "value": ratios[name][f"{what}_cpu_ms"],
            "at_least": least,
            "within": ratios[name][f"{what}_cpu_ms"] >= least,
        }
        for name in found
        for what, least in _LEAST.get(name, {}).items()
    }
    return {"targets": {**found, _OPENVINO: ours}, "ratios": ratios, "limits": limits}


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    """Return what reading the prompt took, and what each token after the first."""
    found: dict[str, float] = {"peak_rss_bytes": turns[-1]["peak_rss_bytes"]}
    for clock, end in (("cpu", "_cpu_s"), ("wall", "_s")):
        first = [turn[f"ttft{end}"] for turn in turns]
        rest = [(turn[f"total{end}"] - turn[f"ttft{end}"]) / (_NEW - 1) for turn in turns]
        found[f"prefill_{clock}_ms"] = round(1e3 * statistics.median(first), 2)
        found[f"decode_{clock}_ms"] = round(1e3 * statistics.median(rest), 2)
    return found


if __name__ == "__main__":
    main()
