# SPDX-License-Identifier: Apache-2.0
"""Options of `qeff-zoo quantize`, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: How integers are chosen, the default first.
GPTQ, FOLDING, NEAREST = METHODS = ("gptq", "awq+gptq", "nearest")
BITS, GROUPS = (4, 8), (32, 64, 128, 16)
VERSION = 1  # of what is computed: another one may give other integers
MEASURED = 1024  # tokens whose answers are compared


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What became of a matrix.

    Args:
        name: Name of its module in the model.
        bits: Bits of an integer.
        group: Columns that share a scale.
        zero_points: Whether each group has one.
        error: Squared difference of its outputs on the texts, relative to their square.
        nearest_error: Error with rounding to the nearest.
        expert: Number of the expert in a tensor of several; None otherwise.
        is_reached: Whether any token of the texts came to it; rounded to the nearest otherwise.
    """

    name: str
    bits: int
    group: int
    zero_points: bool
    error: float
    nearest_error: float
    expert: int | None = None
    is_reached: bool = True


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantized checkpoint.

    Args:
        path: Folder of the checkpoint.
        bits_per_weight: Mean bits of all matrices, with scales and float matrices.
        distance: Distance of its answers from the float model's on the first texts: see
            `qeff_zoo.quantizer.budget.distance`.
        measure: Name of that distance, in words.
        calibration: The texts' digest and tokens, the method and its version.
        matrices: Quantized matrices.
        folded: Modules that scales were folded into.
        floats: Matrices that stay floats.
    """

    path: Path
    bits_per_weight: float
    distance: float
    measure: str
    calibration: Mapping[str, Any]
    matrices: Sequence[Matrix]
    folded: Sequence[str]
    floats: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What a user may choose.

    Args:
        bits: Bits of integers, without a budget.
        group_size: Columns that share a scale.
        budget: Bits per weight of all matrices; None for `bits` everywhere.
        method: One of `METHODS`.
        zero_points: Whether each group of 4 bits, or of `bits`, has a zero point.
        embeddings: Whether the embedding and the output matrix are quantized too; vLLM does not read that.
        tokens: Maximum number of tokens of the text.
    """

    bits: int = 4
    group_size: int = 32
    budget: float | None = None
    method: str = METHODS[0]
    zero_points: bool = False
    embeddings: bool = False
    tokens: int = 16384
