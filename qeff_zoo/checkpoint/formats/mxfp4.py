# SPDX-License-Identifier: Apache-2.0
"""MXFP4 as GPT-OSS has it: experts' matrices of E2M1, 32 of which share a power of two.

    *_blocks (experts, rows, columns / 32, 16) uint8, two values an octet, the first in the low half
    *_scales (experts, rows, columns / 32) uint8, the exponent plus 127

The float model has those matrices as (experts, columns, rows), without "_blocks" in the name. Source: transformers,
`integrations/mxfp4.py`, `convert_moe_packed_tensors`.
"""

from dataclasses import replace

from qeff_zoo.checkpoint.encoded import Encoded, Encodings, Integers, Stored, of_integers
from qeff_zoo.checkpoint.formats.fields import POWER, halved, scales_of_blocks, twice_e2m1
from qeff_zoo.checkpoint.types import Array, Expression, Read

_BLOCK = 32


def encodings(stored: Stored) -> Encodings:
    """Find the experts of an MXFP4 checkpoint."""
    encoded: dict[str, Encoded] = {}
    values: dict[str, Expression] = {}
    for name in sorted(stored.tensors):
        if name.endswith("_blocks"):
            encoded[name] = _matrices(stored, name)
            values[name.removesuffix("_blocks")] = ["transpose", 1, 2, name]
    return Encodings(encoded=encoded, values=values)


def _matrices(stored: Stored, name: str) -> Encoded:
    blocks = stored.matrix(name, ("U8",), 4)
    *lead, groups, octets = blocks.shape
    if octets * 2 != _BLOCK:
        raise stored.wrong(f"{name!r} is {list(blocks.shape)}", f"{_BLOCK // 2} on the last axis")
    shape = (*lead, groups * _BLOCK)
    scales = stored.tensor(f"{name.removesuffix('_blocks')}_scales", ("U8",), (*lead, groups))
    codes = twice_e2m1(blocks)

    def integers(read: Read, start: int, stop: int) -> Array:
        return codes(read, start, stop).reshape(-1, *shape[1:])

    found = Integers(
        bits=8,
        group=_BLOCK,
        integers=integers,
        scales=halved(scales_of_blocks(stored, replace(scales, dtype=POWER), shape, 1, _BLOCK)),
    )
    return replace(of_integers(shape, (name, scales.name), found), about="mxfp4")
