# SPDX-License-Identifier: Apache-2.0
"""ModelOpt, NVIDIA's: NVFP4, FP8, MXFP8, MXFP4, INT4 (AWQ) and INT8, as its unified Hugging Face export writes them.

    weight          (…, rows, columns / 2) uint8, pairs of E2M1; (rows / 2, columns) uint8, int4 of two rows;
                    (…, rows, columns) 8-bit floats, or int8
    weight_scale    (…, rows, columns / 16) E4M3, times weight_scale_2, one number (NVFP4); exponents of 32 columns
                    (MXFP4, MXFP8); floats: one, of rows, of groups of columns, or of blocks, (down, 1, across, 1)
    pre_quant_scale (columns,) factors of the input, unless they are in the norm before it (AWQ, SmoothQuant)

A tensor NAME that is not a module's weight has NAME_weight_scale. The scheme of a matrix follows from its tensors, not
from `quant_algo` and `exclude_modules`. Source: https://github.com/NVIDIA/Model-Optimizer, `export/quant_utils.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
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
    POWER,
    SMALL_FLOATS,
    finite,
    halved,
    scales_of_blocks,
    signed,
    small_floats,
    to_floats,
    twice_e2m1,
)
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Read

_FLOAT8 = ("FP8", "FP8_PB_REAL", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN")
_FP4 = ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "MXFP4", "W4A8_MXFP4_FP8")
_INTEGERS = ("W4A16_AWQ", "W4A8_AWQ", "W8A16", "W8A8_SQ_PER_CHANNEL")
#: Quantization algorithms, in capitals; MIXED_PRECISION names one for each layer.
ALGORITHMS = ("MIXED_PRECISION", "MXFP8", *_FLOAT8, *_FP4, *_INTEGERS)
_MX_BLOCK = 32
#: Rows and columns of a block of FP8 if there is more than one.
_FP8_BLOCK = 128
_SCALE, _STACK_SCALE = ".weight_scale", "_weight_scale"
#: Ends of names of tensors that quantize activations and caches.
_ACTIVATIONS = ("input_scale", "output_scale", "k_scale", "v_scale")


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    if unknown := sorted(algorithms(config) - {*ALGORITHMS}):
        return (
            f"quantized by NVIDIA ModelOpt with {unknown[0]!r}; {', '.join(ALGORITHMS)} can be read"
        )
    return ""


def algorithms(config: Mapping[str, Any]) -> set[str]:
    """Return the algorithms of a configuration, in capitals; empty if only the KV cache is quantized."""
    layers = config.get("quantized_layers")
    parts = [config, *(layers.values() if isinstance(layers, Mapping) else ())]
    named = [part.get("quant_algo") for part in parts if isinstance(part, Mapping)]
    return {str(name).upper() for name in named if name is not None}


def floats(config: Mapping[str, Any]) -> SmallFloats | None:
    """Return the float format of some matrices; None for integers, which E2M1 is if doubled."""
    return SmallFloats.FLOAT8 if algorithms(config) & {"MXFP8", *_FLOAT8} else None


def is_float8(config: Mapping[str, Any]) -> bool:
    """Return whether all matrices are 8-bit floats, with scales that are floats too."""
    found = algorithms(config) - {"MIXED_PRECISION"}
    return bool(found) and found <= {*_FLOAT8}


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of a ModelOpt checkpoint."""
    encoded = {}
    for name in stored.tensors:
        module = name.endswith(_SCALE)
        if not (module or name.endswith(_STACK_SCALE)):
            continue
        weight = name.removesuffix("_scale" if module else _STACK_SCALE)
        if weight in stored.tensors:
            encoded[weight] = _matrix(stored, weight, name)
    small = ("U8", "I8", *SMALL_FLOATS)
    scales = {name for value in encoded.values() for name in value.sources}
    for name, info in stored.tensors.items():
        if info.dtype in small and len(info.shape) > 1 and name not in scales:
            raise stored.wrong(f"tensor {name!r} has no weight_scale", "one beside every weight")
    beside = {name for name in stored.tensors if name.endswith(_ACTIVATIONS)}
    return Encodings(encoded=encoded, beside=frozenset(beside - encoded.keys()))


def _matrix(stored: Stored, name: str, scale_name: str) -> Encoded:
    """Return a quantized matrix, or a stack of them, times the factors of its input."""
    weight = stored.matrix(name, ("U8", "I8", *SMALL_FLOATS), 2, 3)
    scale = stored.tensor(scale_name, (*FLOATS, POWER, "U8", "F8_E4M3"))
    if scale.dtype == "U8":
        scale = replace(scale, dtype=POWER)
    is_stack = not scale_name.endswith(_SCALE)
    if weight.dtype in SMALL_FLOATS:
        found = _float8(stored, weight, scale)
    elif is_stack:
        raise stored.wrong(
            f"the stack {name!r} is {weight.dtype}", "stacks in 8-bit floats, or experts one by one"
        )
    elif weight.dtype == "I8":
        found = _int8(stored, weight, scale)
    elif scale.dtype in FLOATS:
        found = _int4(stored, weight, scale)
    else:
        found = _float4(stored, weight, scale)
    factors = f"{name.removesuffix('.weight')}.pre_quant_scale"
    return _times_input(stored, found, factors) if factors in stored.tensors else found


def _float8(stored: Stored, weight: TensorInfo, scale: TensorInfo) -> Encoded:
    """Return a matrix of 8-bit floats, with one scale, or one for each row or block."""
    *lead, rows, columns = weight.shape
    if scale.dtype == POWER:
        tall, wide = 1, min(_MX_BLOCK, columns)
        count = int(np.prod(weight.shape[:-1])) * -(-columns // wide)
        if int(np.prod(scale.shape)) != count:
            raise stored.wrong(f"scales {scale.name!r} are {list(scale.shape)}", f"{count}")
    else:
        tall, wide = _block(stored, weight, scale)
    if int(np.prod(scale.shape)) == 1:
        scales = _same(scale, (*weight.shape[1:-1], -(-columns // wide)))
    else:
        grid = (*lead, -(-rows // tall), -(-columns // wide))
        scales = scales_of_blocks(stored, replace(scale, shape=grid), weight.shape, tall, wide)
    about = (
        f"fp8 in blocks of {tall} by {wide}"
        if wide < columns
        else "fp8, per-channel"
        if tall == 1
        else "fp8"
    )
    return small_floats(weight, scales, scale, wide, about, 0 if tall == rows > 1 else tall)


def _same(scale: TensorInfo, shape: tuple[int, ...]) -> Part:
    """Return a reader of one scale for every item of the first axis, each of a shape."""

    def part(read: Read, start: int, stop: int) -> Array:
        value = finite(to_floats(read(scale.name, None, None), scale.dtype), scale).reshape(-1)[0]
        return np.full((stop - start, *shape), value, np.float32)

    return part


def _block(stored: Stored, weight: TensorInfo, scale: TensorInfo) -> tuple[int, int]:
    """Return the rows and columns that share a float scale."""
    *lead, rows, columns = weight.shape
    lengths = [length for length in scale.shape if length != 1]
    count = int(np.prod(scale.shape))
    blocks = -(-rows // _FP8_BLOCK), -(-columns // _FP8_BLOCK)
    if count == 1 or (lead and lengths == lead):
        return rows, columns
    if not lead and scale.shape in ((rows,), (rows, 1)):
        return 1, columns
    if not lead and scale.shape in (blocks, (blocks[0], 1, blocks[1], 1)):
        return min(_FP8_BLOCK, rows), min(_FP8_BLOCK, columns)
    raise stored.wrong(
        f"scales {scale.name!r} are {list(scale.shape)} for {list(weight.shape)}",
        f"one, one for each row, or one for each {_FP8_BLOCK} by {_FP8_BLOCK}",
    )


def _int8(stored: Stored, weight: TensorInfo, scale: TensorInfo) -> Encoded:
    *_, columns = weight.shape
    scales = scales_of_blocks(stored, scale, weight.shape, 1, columns)
    integers = Integers(bits=8, group=columns, integers=signed(stored, weight, 8), scales=scales)
    return of_integers(weight.shape, (weight.name, scale.name), integers)


def _int4(stored: Stored, weight: TensorInfo, scale: TensorInfo) -> Encoded:
    """Return a matrix of int4 in two's complement, with two rows in an octet, the even one first."""
    half, columns = stored.matrix(weight.name, ("U8",)).shape
    shape = (2 * half, columns)
    wide = _group(stored, scale, columns)

    def integers(read: Read, start: int, stop: int) -> Array:
        octets = read(weight.name, start // 2, -(-stop // 2))
        nibbles = np.stack([octets & 15, octets >> 4], 1).reshape(-1, columns)
        moved: Array = nibbles[start % 2 : start % 2 + stop - start] ^ np.uint8(8)
        return moved

    scales = scales_of_blocks(stored, scale, shape, 1, wide)
    found = Integers(bits=4, group=wide, integers=integers, scales=scales)
    unused = f"{weight.name}_scale_2"  # for a second rounding, to 8-bit floats, before products
    beside = (unused,) if unused in stored.tensors else ()
    return of_integers(shape, (weight.name, scale.name, *beside), found)


def _float4(stored: Stored, weight: TensorInfo, scale: TensorInfo) -> Encoded:
    """Return a matrix of E2M1: NVFP4 if its scales are E4M3, else MXFP4."""
    shape = (*weight.shape[:-1], weight.shape[-1] * 2)
    group = _group(stored, scale, shape[-1])
    scales = scales_of_blocks(stored, scale, shape, 1, group)
    names, about = [weight.name, scale.name], "mxfp4"
    if scale.dtype != POWER:
        whole = stored.tensor(f"{weight.name}_scale_2", ("F32",))
        names, about = [*names, whole.name], "nvfp4"
        scales = _times(stored, scales, whole, shape)
    integers = Integers(bits=8, group=group, integers=twice_e2m1(weight), scales=halved(scales))
    return replace(of_integers(shape, tuple(names), integers), about=about)


def _group(stored: Stored, scale: TensorInfo, columns: int) -> int:
    """Return the number of columns that share a scale."""
    count = scale.shape[-1] if scale.shape else 0
    if not count or columns % count:
        raise stored.wrong(
            f"scales {scale.name!r} are {list(scale.shape)} for {columns} columns",
            "as many columns for each",
        )
    return columns // count


def _times(stored: Stored, scales: Part, whole: TensorInfo, shape: tuple[int, ...]) -> Part:
    """Return a reader of scales times the second one, of the whole tensor or of each matrix of a stack."""
    count = int(np.prod(whole.shape))
    if count != 1 and (len(shape) == 2 or count != shape[0]):
        raise stored.wrong(f"{whole.name!r} is {list(whole.shape)}", "one number")

    def part(read: Read, start: int, stop: int) -> Array:
        by = to_floats(read(whole.name, None, None), whole.dtype).reshape(-1)
        by = by[0] if count == 1 else by[start:stop, None, None]
        with np.errstate(all="ignore"):
            return finite(scales(read, start, stop) * by, whole)

    return part


def _times_input(stored: Stored, found: Encoded, name: str) -> Encoded:
    """Return a matrix times the factors of its input columns: its values are no integers with scales any more."""
    factors = stored.tensor(name, FLOATS, (found.shape[-1],))

    def values(read: Read, start: int, stop: int) -> Array:
        by = finite(to_floats(read(name, None, None), factors.dtype), factors)
        product: Array = found.values(read, start, stop) * by
        return product

    return Encoded(
        shape=found.shape,
        sources=(*found.sources, name),
        about=f"{found.about}, times input factors",
        values=values,
    )
