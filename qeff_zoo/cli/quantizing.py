# SPDX-License-Identifier: Apache-2.0
"""The `quantize` command: from a checkpoint of floats to one of integers."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.options import command
from qeff_zoo.disk.text_files import read_text
from qeff_zoo.terminal.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.quantizer.options import Quantized


def quantize_command(arguments: argparse.Namespace) -> None:
    """Write a quantized checkpoint, and print its path."""
    from qeff_zoo.quantizer.options import QuantizeOptions
    from qeff_zoo.quantizer.quantize import quantize

    text = None if arguments.calibration is None else read_text(arguments.calibration)
    result = quantize(
        arguments.model,
        arguments.output,
        QuantizeOptions(
            bits=arguments.bits,
            group_size=arguments.group_size,
            budget=arguments.budget,
            method=arguments.method,
            zero_points=arguments.zero_points,
            embeddings=arguments.embeddings,
            tokens=arguments.calibration_tokens,
        ),
        text=text,
        revision=arguments.revision,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(result.as_dict())
        return
    print(_summary(result), file=sys.stderr)
    print(result.path)


def _summary(result: "Quantized") -> str:
    """Return a summary of the quantized matrices, by format, and of the outputs' errors."""
    rows = []
    kinds = Counter((matrix.bits, matrix.group, matrix.zero_points) for matrix in result.matrices)
    for bits, group, zero_points in sorted(kinds):
        kind = bits, group, zero_points
        these = [
            matrix
            for matrix in result.matrices
            if (matrix.bits, matrix.group, matrix.zero_points) == kind
        ]
        error = sum(one.error for one in these) / len(these)
        nearest = sum(one.nearest_error for one in these) / len(these)
        rows.append(
            [
                f"int{bits} in groups of {group}{', zero points' if zero_points else ''}",
                *(len(these), f"{error:.2g}", f"{nearest:.2g}"),
            ]
        )
    if result.floats:
        rows.append(["floats", len(result.floats), "0", "0"])
    unreached = sum(not matrix.is_reached for matrix in result.matrices)
    missed = f"; no token came to {unreached:,} matrices of experts" if unreached else ""
    shown = table(rows, ["linear layers", "number", "error", "rounded to the nearest"])
    return (
        f"{shown}\n\n{result.bits_per_weight:.3f} bits per weight; {result.measure} from the float model "
        f"{result.distance:.2g}, on {result.calibration['tokens']:,} tokens{missed}"
    )


# --- arguments ----------------------------------------------------------------------------------


def _add_quantize(commands: Any) -> None:
    parser = command(commands, "quantize", "quantize a checkpoint, calibrated on a text")
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Hub id (org/name) or folder of a checkpoint with float weights",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--bits",
        type=int,
        default=4,
        metavar="N",
        help="bits per weight: 4 or 8 (default: 4), without --budget",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        default=32,
        metavar="N",
        help="group size: 16, 32, 64 or 128 columns (default: 32)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="BITS",
        help="average bits per weight of all matrices, float matrices and scales included: the most sensitive "
        "matrices get 8 bits, all others 4",
    )
    parser.add_argument(
        "--zero-points",
        action="store_true",
        help="zero points for 4-bit groups (and 8-bit groups without --budget): an eighth of a bit more per weight "
        "in groups of 32, and finer steps for values on one side of 0",
    )
    parser.add_argument(
        "--embeddings",
        action="store_true",
        help="also quantize the embedding and output matrices, which vLLM does not support",
    )
    parser.add_argument(
        "--method",
        default="gptq",
        metavar="NAME",
        help="quantization method: gptq, awq+gptq or nearest (default: gptq)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="calibration text, or one text per line for an encoder (default: built-in texts)",
    )
    parser.add_argument(
        "--calibration-tokens",
        type=int,
        default=16384,
        metavar="N",
        help="largest number of calibration tokens (default: 16384)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_quantize, {"quantize": quantize_command}),)
