# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint of floats to one of integers: `quantize`."""

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import read_text
from qeff_zoo.cli.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.quantizer.options import Quantized


def quantize_command(arguments: argparse.Namespace) -> None:
    """Write a quantized checkpoint, and print its path."""
    from qeff_zoo.quantizer.options import QuantizeOptions
    from qeff_zoo.quantizer.quantize import quantize

    text = None if arguments.calibration is None else read_text(arguments.calibration)
    found = quantize(
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
        print_json(found.as_dict())
        return
    print(_summary(found), file=sys.stderr)
    print(found.path)


def _summary(found: "Quantized") -> str:
    """Say what became of the matrices, of a format each, and of the answers."""
    rows = []
    kinds = Counter((one.bits, one.group, one.zero_points) for one in found.matrices)
    for bits, group, zero_points in sorted(kinds):
        kind = bits, group, zero_points
        these = [one for one in found.matrices if (one.bits, one.group, one.zero_points) == kind]
        error = sum(one.error for one in these) / len(these)
        nearest = sum(one.nearest_error for one in these) / len(these)
        rows.append(
            [
                f"int{bits} in groups of {group}{', zero points' if zero_points else ''}",
                *(len(these), f"{error:.2g}", f"{nearest:.2g}"),
            ]
        )
    if found.floats:
        rows.append(["floats", len(found.floats), "0", "0"])
    unreached = sum(not one.is_reached for one in found.matrices)
    missed = f"; no token came to {unreached:,} matrices of experts" if unreached else ""
    shown = table(rows, ["linear layers", "number", "error", "rounded to the nearest"])
    return (
        f"{shown}\n\n{found.bits_per_weight:.3f} bits per weight; {found.measure} from the float model "
        f"{found.distance:.2g}, on {found.calibration['tokens']:,} tokens{missed}"
    )
