#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a quantization costs: the perplexity of a text by Hugging Face's model, the portable graph, and packages.

    python scripts/perplexity.py MODEL FILE [--weights fp32 int8 int4] [--ctx-len 512] [--graph] [--json]
    python scripts/perplexity.py --model_name MODEL --dataset_name FILE --model_type onnx --ctx_len 512 --stride 256

Builds the packages, or takes them from the store. Every model is asked for the same tokens of the same windows. The
second line is QEfficient's: its flags work too, and Hugging Face's model is always there to compare with.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import qeff_zoo
from qeff_zoo.errors import PlanError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.qefficient.cloud import flags
from qeff_zoo.validation import perplexity


def main() -> int:
    """Compare what was asked for and print the table."""
    arguments = _parser().parse_args()
    try:
        text = _text(arguments)
        packages = _packages(arguments)
        scoring = perplexity.prepare(
            next(iter(packages.values())),
            text,
            window=arguments.window,
            stride=arguments.stride,
            batch_size=arguments.batch_size,
        )
        if arguments.num_samples > 0:
            kept = scoring.window + (arguments.num_samples - 1) * scoring.stride
            scoring = replace(scoring, tokens=scoring.tokens[:kept])
        graph = arguments.graph or arguments.model_type == "onnx"
        found = perplexity.compare(packages, scoring, graph=graph)
    except ZooError as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return 1
    answer = json.dumps(found.as_dict(), indent=2) if arguments.json else str(found)
    print(answer)
    if arguments.log_file:
        with arguments.log_file.open("a", encoding="utf-8") as log:
            log.write(f"{answer}\n")
    return 0


def _text(arguments: argparse.Namespace) -> str:
    """Read what is to be scored; refuse, before anything is built, what means nothing here."""
    path = arguments.file or arguments.dataset_name
    if arguments.qpc_device_id:
        raise PlanError(
            [
                f"--qpc_device_id is {arguments.qpc_device_id!r}, and packages are scored on the CPU. Leave it out; "
                "`qeff-zoo predict` says what a card's numerics do to a model."
            ]
        )
    try:
        return Path(path or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            [
                f"Cannot read {path!r}: {error}. Expected a text file in UTF-8; of a data set save the texts in one, "
                "and name it as FILE or --dataset_name."
            ]
        ) from error


def _packages(arguments: argparse.Namespace) -> dict[str, Package]:
    """Build what is to be compared, or open what was named."""
    if arguments.model_path:
        return {"package": qeff_zoo.find_package(arguments.model_path)}
    model = arguments.model or arguments.model_name
    if model is None:
        raise PlanError(
            ["There is no model; expected MODEL, --model_name or --model_path. Name one."]
        )
    sizes = {"ctx_len": arguments.ctx_len, "batch_size": arguments.batch_size}
    # Of QEfficient's other types of models, Hugging Face's is always there, and the graph is asked for above.
    every = ["fp32"] if arguments.model_type in ("torch", "onnx") else arguments.weights
    return {weights: qeff_zoo.build(model, weights=weights, **sizes) for weights in every}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="Hub id or folder of a checkpoint")
    add("file", nargs="?", metavar="FILE", help="a text in UTF-8")
    add("--weights", nargs="+", default=["fp32", "int8", "int4"], metavar="W", help="packages")
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    text = "context of the packages (default: 512)"
    flags.add(parser, "ctx_len", **number, default=512, help=text)
    add("--window", **number, help="tokens seen at a time (default: the context)")
    text = "tokens from one window to the next (default: half a window)"
    add("--stride", **number, help=text)
    text = "windows at a time (default: 4)"
    flags.add(parser, "batch_size", **number, default=4, help=text)
    add("--graph", action="store_true", help="also the portable graph, in float32")
    add("--json", action="store_true", help="print the answer as JSON")
    theirs = parser.add_argument_group("QEfficient's flags")
    flags.add(theirs, "model_name", metavar="MODEL", help="as MODEL")
    flags.add(theirs, "dataset_name", metavar="FILE", help="as FILE")
    flags.add(theirs, "model_path", metavar="PACKAGE", help="score this package, and build none")
    text = "torch: Hugging Face's model and an fp32 package; onnx: the graph too; qpc: as without"
    flags.add(theirs, "model_type", choices=["torch", "onnx", "qpc"], help=text)
    text = "1: tokens are scored one by one, as they are generated"
    flags.add(theirs, "prompt_len", type=int, choices=[1], help=text)
    text = "windows that are scored at most (default: all)"
    flags.add(theirs, "num_samples", **number, default=-1, help=text)
    flags.add(theirs, "qpc_device_id", type=flags.integers, metavar="[N]", help="refused")
    text = "also append the answer to this file"
    flags.add(theirs, "log_file", type=Path, metavar="FILE", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
