# SPDX-License-Identifier: Apache-2.0
"""AWQ (gemm): 4-bit integers with zero points, packed along the outputs in AWQ's own order.

    qweight (columns, rows / 8) int32, qzeros (columns / group, rows / 8) int32, scales (columns / group, rows)

Source: https://github.com/casper-hansen/AutoAWQ, `WQLinear_GEMM`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Part,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.formats.fields import FLOATS, float_columns
from qeff_zoo.checkpoint.types import Array, Read

#: Axis of a matrix's rows in each stored tensor, by the end of its name.
ROWS = {"qweight": 1, "qzeros": 1, "scales": 1}
#: Positions in a word of the fields of eight neighbouring rows.
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    version = str(config.get("version") or config.get("checkpoint_format") or "gemm").lower()
    if version != "gemm":
        return f"AWQ of version {version!r}; 'gemm' can be read, which is what most publish"
    bits = config.get("bits", config.get("w_bit", 4))
    return "" if bits == 4 else f"AWQ of {bits!r} bits; 4 can be read"


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of an AWQ checkpoint."""
    return Encodings(
        encoded={f"{path}.weight": matrix(stored, path) for path in stored.modules("qweight")}
    )


def matrix(stored: Stored, path: str) -> Encoded:
    """Find one matrix.

    Args:
        stored: Quantized checkpoint with `group_size` in its config.
        path: Path of the module.
    """
    weight = stored.matrix(f"{path}.qweight", ("I32",))
    columns, rows = weight.shape[0], weight.shape[1] * 8
    size = stored.config.get("group_size", stored.config.get("q_group_size", 128))
    group = stored.group(size, columns)
    groups = -(-columns // group)
    zeros = stored.tensor(f"{path}.qzeros", ("I32",), (groups, rows // 8))
    scales = stored.tensor(f"{path}.scales", FLOATS, (groups, rows))
    integers = Integers(
        bits=4,
        group=group,
        integers=_fields(weight.name),
        scales=float_columns(scales),
        zeros=_fields(zeros.name),
    )
    return of_integers((rows, columns), (weight.name, zeros.name, scales.name), integers)


def _fields(name: str) -> Part:
    """Return a reader of the rows of a matrix that is stored column by column."""

    def part(read: Read, start: int, stop: int) -> Array:
        first = start // 8
        words = read(name, None, None)[:, first : -(-stop // 8)].view(np.uint32)
        words = np.ascontiguousarray(words.T)
        rows = np.empty((len(words), 8, words.shape[1]), np.uint8)
        for row, column in enumerate(_PLACES):
            moved = words >> np.uint32(4 * column)
            np.bitwise_and(moved, np.uint32(15), out=rows[:, row], casting="unsafe")
        return rows.reshape(-1, words.shape[1])[start - 8 * first : stop - 8 * first]

    return part
