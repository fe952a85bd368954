#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a quantization costs: the perplexity of a text by Hugging Face's model, the portable graph, and packages.

    python scripts/perplexity.py MODEL FILE [--weights fp32 int8 int4] [--ctx-len 512] [--graph] [--json]
    python scripts/perplexity.py --model_name MODEL --dataset_name FILE --model_type onnx --ctx_len 512 --stride 256
    python scripts/perplexity.py --model_path PACKAGE --dataset_name wikitext-2-raw-v1 --qpc_device_id [0]

Builds the packages, or takes them from the store. Every model is asked for the same tokens of the same windows. The
other lines have QEfficient's flags; Hugging Face's model is always there to compare with.
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
from qeff_zoo.pipeline import comparison
from qeff_zoo.qefficient.cloud import flags
from qeff_zoo.qefficient.execution import on_devices
from qeff_zoo.validation import perplexity

#: Data set of QEfficient's script, whose `--dataset_name` is one of its configurations.
_WIKITEXT = "Salesforce/wikitext"


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
        with on_devices(next(iter(packages.values())), arguments.qpc_device_id):
            found = comparison.compare(packages, scoring, graph=graph)
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
    """Read the text that is scored: a file, or a data set."""
    path = arguments.file or arguments.dataset_name
    if path and path == arguments.dataset_name and not Path(path).exists():
        return _data_set(path)
    try:
        return Path(path or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            [f"Cannot read {path!r}: {error}. Expected a text file in UTF-8. Check the path."]
        ) from error


def _data_set(name: str) -> str:
    """Return the texts of a data set's test split, from the cache of `datasets` alone.

    Args:
        name: OWNER/NAME or OWNER/NAME:CONFIG; without an owner a configuration of WikiText, as QEfficient's script.
    """
    repository, _, config = name.partition(":") if "/" in name else (_WIKITEXT, "", name)
    wanted = [repository, *([config] if config else [])]
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise PlanError(
            [
                f"--dataset_name is {name!r}, which is no file, and the package `datasets` is missing. Install "
                "qeff-zoo[finetune], or name a text file."
            ]
        ) from error
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        texts = datasets.load_dataset(*wanted, split="test")["text"]
    except (OSError, ValueError, KeyError) as error:
        call = ", ".join([*map(repr, wanted), "split='test'"])
        raise PlanError(
            [
                f"--dataset_name is {name!r}, which is neither a file nor a data set in the cache of `datasets` with a "
                f"split 'test' and a column 'text': {' '.join(str(error).split())}. Nothing is downloaded here. Run "
                f"`datasets.load_dataset({call})` once in Python, or name a text file."
            ]
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    return "\n\n".join(texts)


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
    text = "as FILE; or a data set that `datasets` has in its cache: wikitext-2-raw-v1, OWNER/NAME:CONFIG"
    flags.add(theirs, "dataset_name", metavar="NAME", help=text)
    flags.add(theirs, "model_path", metavar="PACKAGE", help="score this package, and build none")
    text = "torch: Hugging Face's model and an fp32 package; onnx: the graph too; qpc: as without"
    flags.add(theirs, "model_type", choices=["torch", "onnx", "qpc"], help=text)
    text = "1: tokens are scored one by one, as they are generated"
    flags.add(theirs, "prompt_len", type=int, choices=[1], help=text)
    text = "windows that are scored at most (default: all)"
    flags.add(theirs, "num_samples", **number, default=-1, help=text)
    text = "cards for a package that runs on cards"
    flags.add(theirs, "qpc_device_id", type=flags.integers, metavar="[N]", help=text)
    text = "also append the answer to this file"
    flags.add(theirs, "log_file", type=Path, metavar="FILE", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
