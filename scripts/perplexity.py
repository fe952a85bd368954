#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a quantization costs: the perplexity of a text by Hugging Face's model, the portable graph, and packages.

    python scripts/perplexity.py MODEL FILE [--weights fp32 int8 int4] [--ctx-len 512] [--graph] [--json]

Builds the packages, or takes them from the store. Every model is asked for the same tokens of the same windows.
"""

import argparse
import json
import sys
from pathlib import Path

import qeff_zoo
from qeff_zoo.errors import ZooError
from qeff_zoo.validation import perplexity


def main() -> int:
    """Compare what was asked for and print the table."""
    arguments = _parser().parse_args()
    try:
        text = arguments.file.read_text(encoding="utf-8")
        sizes = {"ctx_len": arguments.ctx_len, "batch_size": arguments.batch_size}
        packages = {
            weights: qeff_zoo.build(arguments.model, weights=weights, **sizes)
            for weights in arguments.weights
        }
        scoring = perplexity.prepare(
            next(iter(packages.values())),
            text,
            window=arguments.window,
            stride=arguments.stride,
            batch_size=arguments.batch_size,
        )
        found = perplexity.compare(packages, scoring, graph=arguments.graph)
    except (OSError, UnicodeDecodeError, ZooError) as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.as_dict(), indent=2) if arguments.json else found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("model", metavar="MODEL", help="Hub id or folder of a checkpoint")
    add("file", metavar="FILE", type=Path, help="a text in UTF-8")
    add("--weights", nargs="+", default=["fp32", "int8", "int4"], metavar="W", help="packages")
    add(
        "--ctx-len",
        type=int,
        default=512,
        metavar="N",
        help="context of the packages (default: 512)",
    )
    add("--window", type=int, metavar="N", help="tokens seen at a time (default: the context)")
    add(
        "--stride",
        type=int,
        metavar="N",
        help="tokens from one window to the next (default: half a window)",
    )
    add("--batch-size", type=int, default=4, metavar="N", help="windows at a time (default: 4)")
    add("--graph", action="store_true", help="also the portable graph, in float32")
    add("--json", action="store_true", help="print the answer as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
