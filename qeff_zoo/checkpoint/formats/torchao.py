# SPDX-License-Identifier: Apache-2.0
"""torchao: the format in the files' metadata, tensor by tensor.

    PATH._weight_qdata (rows, columns) int8 or 8-bit floats, PATH._weight_scale (blocks down, blocks across), and
    of integers PATH._weight_zero_point

The entry of PATH.weight is JSON: its class, and the size of a block. Source: https://github.com/pytorch/ao,
`prototype/safetensors/safetensors_support.py`, `quantization/quantize_/workflows`.
"""

import json
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
from qeff_zoo.checkpoint.formats import SmallFloats
from qeff_zoo.checkpoint.formats.fields import (
    FLOATS,
    SMALL_FLOATS,
    scales_of_blocks,
    signed,
    small_floats,
)
from qeff_zoo.checkpoint.types import Array, Read
from qeff_zoo.errors import UnsupportedModelError

_INTEGERS = ("Int8Tensor", "IntxUnpackedToInt8Tensor")
_FLOATS = "Float8Tensor"
_PLAIN = "Tensor"


def floats(config: dict[str, Any]) -> SmallFloats | None:
    """Return the float format of the matrices; None for integers."""
    return SmallFloats.FLOAT8 if "Float8" in str(config.get("quant_type")) else None


def is_float8(config: dict[str, Any]) -> bool:
    """Return whether all matrices are 8-bit floats."""
    return bool(floats(config))


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of a torchao checkpoint."""
    encoded = {}
    for name, text in sorted(stored.metadata.items()):
        if not text.startswith("{"):
            continue
        kind, fields = _entry(stored, name, text)
        if kind == _PLAIN:
            continue
        if kind != _FLOATS and kind not in _INTEGERS:
            known = ", ".join((*_INTEGERS, _FLOATS))
            raise UnsupportedModelError(
                f"{stored.name!r} has {name!r} as torchao's {kind}; {known} can be read. Use the unquantized "
                "checkpoint, or another of the model."
            )
        encoded[name] = _tensor(stored, name, kind, fields)
    if not encoded:
        raise stored.wrong("its files say of no tensor how it is quantized", "metadata of torchao")
    return Encodings(encoded=encoded)


def _entry(stored: Stored, name: str, text: str) -> tuple[str, dict[str, Any]]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        entry = {}
    kind, fields = entry.get("_type"), entry.get("_data", {})
    if not isinstance(kind, str) or not isinstance(fields, dict):
        raise stored.wrong(f"of {name!r} its files say {text[:200]!r}", "a `_type` and its `_data`")
    return kind, fields


def _tensor(stored: Stored, name: str, kind: str, fields: dict[str, Any]) -> Encoded:
    path, _, last = name.rpartition(".")
    prefix = f"{path}._{last}_" if path else f"_{last}_"
    weight = stored.matrix(f"{prefix}qdata", SMALL_FLOATS if kind == _FLOATS else ("I8",), 2, 3)
    block = fields.get("block_size")
    if not isinstance(block, list) or len(block) != len(weight.shape):
        raise stored.wrong(f"the `block_size` of {name!r} is {block!r}", "a length for each axis")
    *lead, tall, wide = map(stored.group, block, weight.shape)
    if any(length != 1 for length in lead) or (kind != _FLOATS and tall != 1):
        raise stored.wrong(f"the `block_size` of {name!r} is {block!r}", "columns of one row")
    scale = stored.tensor(f"{prefix}scale", FLOATS)
    scales = scales_of_blocks(stored, scale, weight.shape, tall, wide)
    if kind == _FLOATS:
        about = (
            "fp8, per-channel"
            if tall == 1 and wide == weight.shape[-1]
            else f"fp8 in blocks of {tall} by {wide}"
        )
        return small_floats(weight, scales, scale, wide, about)
    bits = _bits(stored, name, kind, fields)
    names = [weight.name, scale.name]
    zeros = None
    if f"{prefix}zero_point" in stored.tensors:
        names.append(f"{prefix}zero_point")
        zeros = _zeros(stored, names[-1], weight.shape, wide, bits)
    integers = Integers(
        bits=bits, group=wide, integers=signed(stored, weight, bits), scales=scales, zeros=zeros
    )
    return of_integers(weight.shape, tuple(names), integers)


def _bits(stored: Stored, name: str, kind: str, fields: dict[str, Any]) -> int:
    if kind == _INTEGERS[0]:
        return 8
    target = fields.get("target_dtype")
    bits = str(target.get("_data") if isinstance(target, dict) else target).removeprefix("int")
    if bits not in "2345678" or len(bits) != 1:
        raise stored.wrong(f"the `target_dtype` of {name!r} is {target!r}", "int2 to int8")
    return int(bits)


def _zeros(stored: Stored, name: str, shape: tuple[int, ...], wide: int, bits: int) -> Part:
    info = stored.tensor(name, ("I8",))
    zeros = scales_of_blocks(stored, info, shape, 1, wide)

    def part(read: Read, start: int, stop: int) -> Array:
        moved: Array = zeros(read, start, stop) + (1 << (bits - 1))
        if moved.size and not 0 <= moved.min() <= moved.max() < 1 << bits:
            raise stored.wrong(f"{name!r} has zero points beyond {bits} bits", "none")
        return moved.astype(np.uint8)

    return part
