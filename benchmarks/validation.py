# SPDX-License-Identifier: Apache-2.0
"""Claim: a validation takes at most a third of the CPU time that it took with every variant of the reference run whole.

One package and its checkpoint are compared again and again (`qeff-zoo validate`), on one thread, by this environment
and by those of `--peers` (an older qeff-zoo, say) in turns. CPU time includes the reference's process. Prints JSON.

    python benchmarks/validation.py PACKAGE CHECKPOINT [--peers PYTHON …] [--repeat 3]
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict

from measuring import Measured, machine, measure


def main() -> None:
    """Measure what was asked for and print the figures."""
    arguments = _parser().parse_args()
    found: dict[str, list[Measured]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(arguments.repeat):
        for python in (sys.executable, *arguments.peers):
            command = [python, "-m", "qeff_zoo", "validate", arguments.package]
            command += ["--checkpoint", arguments.checkpoint, "--json"]
            found.setdefault(python, []).append(measure(command, environment))
    figures = {
        python: {
            name: statistics.median(asdict(run)[name] for run in runs)
            for name in ("cpu_seconds", "wall_seconds", "peak_rss_bytes")
        }
        for python, runs in found.items()
    }
    ours = figures[sys.executable]["cpu_seconds"]
    ratios = {python: ours / figures[python]["cpu_seconds"] for python in arguments.peers}
    packages = ("qeff-zoo", "torch", "transformers", "onnxruntime")
    print(json.dumps({"machine": machine(packages), "figures": figures, "to": ratios}, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", help="folder of a package")
    parser.add_argument("checkpoint", help="its checkpoint")
    parser.add_argument("--peers", nargs="*", default=[], help="Pythons of other environments")
    parser.add_argument("--repeat", type=int, default=3, help="turns (3)")
    return parser


if __name__ == "__main__":
    main()
