# SPDX-License-Identifier: Apache-2.0
"""AWQ (gemm): 4-bit integers with zero points, packed along the outputs in an order of AWQ's own.

    qweight (columns, rows / 8) int32, qzeros (columns / group, rows / 8) int32, scales (columns / group, rows)

Source: https://github.com/casper-hansen/AutoAWQ, `WQLinear_GEMM`.
"""

import numpy as np

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.formats.encoded import Array, Encoded, Encodings, Integers, Part, Stored, of_integers
from qeff_zoo.formats.fields import float_columns, unpack
from qeff_zoo.weights.expressions import Read

_FLOATS = ("F16", "BF16", "F32")
#: Where in a word the fields of eight neighbouring rows are.
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of an AWQ checkpoint."""
    config = stored.config
    version = str(config.get("version") or config.get("checkpoint_format") or "gemm").lower()
    if version != "gemm":
        raise UnsupportedModelError(
            f"{stored.name!r} is AWQ of version {version!r}. Expected 'gemm', the one that is published. Use such a "
            "checkpoint of the model."
        )
    if config.get("bits", config.get("w_bit", 4)) != 4:
        raise stored.wrong(f"`bits` is {config['bits']!r}", "4")
    return Encodings(
        encoded={f"{path}.weight": _matrix(stored, path) for path in stored.modules("qweight")}
    )


def _matrix(stored: Stored, path: str) -> Encoded:
    weight = stored.tensor(f"{path}.qweight", ("I32",))
    if len(weight.shape) != 2:
        raise stored.wrong(f"{weight.name!r} is {list(weight.shape)}", "a matrix")
    columns, rows = weight.shape[0], weight.shape[1] * 8
    group = int(stored.config.get("group_size", stored.config.get("q_group_size", 128)))
    group = columns if group <= 0 else group
    groups = -(-columns // group)
    zeros = stored.tensor(f"{path}.qzeros", ("I32",), (groups, rows // 8))
    scales = stored.tensor(f"{path}.scales", _FLOATS, (groups, rows))
    integers = Integers(
        bits=4,
        group=group,
        integers=_fields(weight.name),
        scales=float_columns(scales),
        zeros=_fields(zeros.name),
    )
    return of_integers((rows, columns), (weight.name, zeros.name, scales.name), integers)


def _fields(name: str) -> Part:
    """Return what reads rows of a matrix that is stored column by column."""

    def part(read: Read, start: int, stop: int) -> Array:
        first, last = start // 8, -(-stop // 8)
        words = read(name, None, None)[:, first:last]
        fields = unpack(words, 4).reshape(len(words), -1, 8)[..., _PLACES]
        rows = fields.reshape(len(words), -1)[:, start - 8 * first : stop - 8 * first]
        return np.ascontiguousarray(rows.T)

    return part
