# SPDX-License-Identifier: Apache-2.0
"""FP8: 8-bit floats with a scale for each block, as DeepSeek's, for each row (FBGEMM), or for a whole matrix.

    weight (…, rows, columns), weight_scale_inv or weight_scale (…, blocks down, blocks across), which multiply alike

Tensors other than module weights have the scale `NAME_scale_inv` or `NAME_scale`. Experts may be E2M1 instead, as int8
pairs with a power of two per 32 columns. Blocks are those of `weight_block_size`; the last of a row or column may be
smaller. Source: transformers, `integrations/finegrained_fp8.py` and `fbgemm_fp8.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qeff_zoo.checkpoint.encoded import Encoded, Encodings, Integers, Stored, of_integers
from qeff_zoo.checkpoint.formats import SmallFloats
from qeff_zoo.checkpoint.formats.fields import (
    FLOATS,
    POWER,
    SMALL_FLOATS,
    halved,
    scales_of_blocks,
    small_floats,
    twice_e2m1,
)
from qeff_zoo.checkpoint.safetensors_index import TensorInfo

_SCALES = ("_scale_inv", "_scale")
#: Axis of a matrix's rows in each stored tensor, by the end of its name.
ROWS = {"weight": 0, "weight_scale_inv": 0, "weight_scale": 0}
_FP4_BLOCK = 32
#: Rows and columns of a scale in MXFP8.
_MXFP8_BLOCK = (1, 32)
#: Tensors beside weights: scales of activations.
_ACTIVATIONS = ("input_scale", "activation_scale", "input_scale_ub", "output_scale")


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    block = config.get("weight_block_size")
    if block is None or (
        isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    ):
        return ""
    return f"FP8 in blocks of {block!r}; two lengths, or none, can be read"


def floats(config: Mapping[str, Any]) -> SmallFloats:
    """Return the float format of the matrices."""
    return SmallFloats.FLOAT8


def is_float8(config: Mapping[str, Any]) -> bool:
    """Return whether all matrices are 8-bit floats, with scales that are floats too."""
    return config.get("quant_method") != "mxfp8"


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of an FP8 checkpoint."""
    encoded = {}
    for name, info in stored.tensors.items():
        scale = next((name + end for end in _SCALES if name + end in stored.tensors), None)
        if info.dtype in SMALL_FLOATS and not name.endswith(_SCALES):
            encoded[name] = _floats(stored, info, scale or name + _SCALES[0])
        elif info.dtype == "I8" and scale:
            encoded[name] = _pairs(stored, info, scale)
    beside = {name for name in stored.tensors if name.endswith(_ACTIVATIONS)}
    return Encodings(encoded=encoded, beside=frozenset(beside))


def _floats(stored: Stored, info: TensorInfo, scale_name: str) -> Encoded:
    info = stored.matrix(info.name, SMALL_FLOATS, 2, 3)
    scale = _power(stored.tensor(scale_name, (*FLOATS, POWER, "U8")))
    *lead, rows, columns = info.shape
    if (
        lead
        and stored.config["quant_method"] == "fbgemm_fp8"
        and math.prod(scale.shape) == lead[0] * columns
    ):
        scale = replace(
            scale, shape=(*lead, 1, columns)
        )  # of columns, though (experts, columns, 1) is stored too
    usual = _MXFP8_BLOCK if stored.config["quant_method"] == "mxfp8" else None
    blocks = stored.config.get("weight_block_size") or usual
    block = blocks if math.prod(scale.shape) > 1 else None
    tall, wide = block or _block(scale, info.shape)
    block_rows = 0 if block is None and tall == rows > 1 else tall
    tall, wide = min(tall, rows), min(wide, columns)
    scales = scales_of_blocks(stored, scale, info.shape, tall, wide)
    if wide == columns:
        about = "fp8, per-channel" if tall == 1 else "fp8, per-input" if wide == 1 else "fp8"
    else:
        about = f"fp8 in blocks of {tall} by {wide}"
    return small_floats(info, scales, scale, wide, about, block_rows)


def _block(scale: TensorInfo, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the block size of a scale for the tensor, for each row, or for each column."""
    *_, rows, columns = shape
    by_column = scale.shape[-2:] == (1, columns) and columns > 1
    if by_column:
        return rows, 1
    lead = len(shape) - 2
    by_row = len(scale.shape) > lead and scale.shape[lead] == rows
    return (1 if by_row else rows), columns


def _pairs(stored: Stored, info: TensorInfo, scale_name: str) -> Encoded:
    info = stored.matrix(info.name, ("I8",), 2, 3)
    shape = (*info.shape[:-1], info.shape[-1] * 2)
    scale = _power(stored.tensor(scale_name, (*FLOATS, POWER, "U8")))
    integers = Integers(
        bits=8,
        group=_FP4_BLOCK,
        integers=twice_e2m1(info),
        scales=halved(scales_of_blocks(stored, scale, shape, 1, _FP4_BLOCK)),
    )
    return replace(of_integers(shape, (info.name, scale.name), integers), about="mxfp4")


def _power(scale: TensorInfo) -> TensorInfo:
    """Return a scale with its stored octets as exponents."""
    return replace(scale, dtype=POWER) if scale.dtype == "U8" else scale
