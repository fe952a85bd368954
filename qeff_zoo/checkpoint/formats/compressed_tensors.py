# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors, as LLM Compressor writes them: packed or plain integers, 8-bit floats, MXFP4, NVFP4, MXFP8.

    weight_packed (…, rows, columns * bits / 32) int32, weight_shape, and perhaps weight_zero_point, packed along the
                  rows; or (…, rows, columns / 2) uint8, pairs of E2M1
    weight        (…, rows, columns) int8, or 8-bit floats
    weight_scale  (…, blocks down, blocks across); for NVFP4 divided by weight_global_scale
    weight_g_idx  (columns,) the group of each column, where those were sorted by importance

`qeff-zoo quantize` writes a stack of experts NAME, which is no module, as NAME_by_rows.weight_packed and so on where it
is (experts, rows, columns), and as NAME_by_columns.weight_packed where it is (experts, columns, rows).

The scheme of a module follows from its tensors, not from the patterns of `config_groups`: it is the one there whose
sizes its tensors have. Source: https://github.com/vllm-project/compressed-tensors, `compressors`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Order,
    Part,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.expressions import transpose
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
    unpack,
    unpack_some,
)
from qeff_zoo.checkpoint.formats.gptq import order_of_groups
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Expression, Read

_MXFP8 = "mxfp8-quantized"
_FORMATS = (
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    _MXFP8,
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
)
#: Axis of a matrix's rows in each stored tensor, by the end of its name; None for a tensor without them.
ROWS = {
    **dict.fromkeys(("weight", "weight_packed", "weight_scale", "weight_zero_point"), 0),
    **dict.fromkeys(("weight_g_idx", "weight_global_scale")),
}
_STACKS = ("_by_rows", "_by_columns")
#: Tensors of the quantization of activations and caches.
_ACTIVATIONS = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "input_g_idx",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
)


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    named = [config.get("format"), *(group.get("format") for group in _groups(config))]
    if unknown := {str(name) for name in named if name is not None} - set(_FORMATS):
        return f"in the format {min(unknown)!r} of compressed-tensors; {', '.join(_FORMATS)} can be read"
    sparsity = config.get("sparsity_config")
    sparse = sparsity.get("format") if isinstance(sparsity, dict) else None
    if sparse not in (None, "dense"):
        return f"in the sparse format {sparse!r} of compressed-tensors; dense ones can be read"
    transforms = config.get("transform_config")
    if isinstance(transforms, dict) and transforms.get("config_groups"):
        return "in compressed-tensors with rotations (`transform_config`)"
    return ""


def floats(config: Mapping[str, Any]) -> SmallFloats | None:
    """Return the float format of some matrices; None for integers, which E2M1 is if doubled."""
    return SmallFloats.FLOAT8 if any(map(_has_float8, _groups(config))) else None


def is_float8(config: Mapping[str, Any]) -> bool:
    """Return whether all matrices are 8-bit floats, with scales that are floats too."""
    groups = _groups(config)
    powers = any(one.get("format") == _MXFP8 for one in (config, *groups))
    return bool(groups) and all(map(_has_float8, groups)) and not powers


def _has_float8(group: Mapping[str, Any]) -> bool:
    weights = group.get("weights")
    return (
        isinstance(weights, dict)
        and weights.get("type") == "float"
        and weights.get("num_bits") == 8
    )


def _groups(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = config.get("config_groups")
    return (
        [group for group in groups.values() if isinstance(group, dict)]
        if isinstance(groups, dict)
        else []
    )


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of a compressed-tensors checkpoint."""
    weights = [group.get("weights") for group in _groups(stored.config)]
    return with_sizes(stored, [weight for weight in weights if isinstance(weight, dict)])


def with_sizes(stored: Stored, schemes: list[Mapping[str, Any]]) -> Encodings:
    """Return the tensors of schemes.

    Args:
        stored: The checkpoint.
        schemes: Schemes, each with a subset of `num_bits` (or `bits`), `group_size` and `block_structure`.
    """
    encoded: dict[str, Encoded] = {}
    values: dict[str, Expression] = {}
    for path in stored.modules("weight_packed", "weight_scale"):
        packed = stored.tensors.get(f"{path}.weight_packed")
        if packed is None:
            plain = _plain(stored, path, schemes)
        elif packed.dtype == "I32":
            plain = _packed(stored, path, schemes)
        else:
            plain = _pairs(stored, path)
        name = f"{path}.weight"
        encoded[name] = plain
        if len(plain.shape) == 3 and path.endswith(_STACKS):
            turned = path.endswith(_STACKS[1])
            stack, _, _ = path.rpartition("_by_")
            values[stack] = transpose(1, 2, name) if turned else name
    beside = {name for name in stored.tensors if name.rpartition(".")[2] in _ACTIVATIONS}
    return Encodings(encoded=encoded, values=values, beside=frozenset(beside))


def _block(
    stored: Stored, scale: TensorInfo, shape: tuple[int, ...], schemes: list[Mapping[str, Any]]
) -> tuple[int, int, int]:
    """Return the block of the only scheme with as many blocks as there are scales.

    Returns:
        Its rows and columns in the tensor, and `Encoded.block_rows`.
    """
    *lead, rows, columns = shape
    fitting = set()
    for scheme in schemes:
        block = scheme.get("block_structure")
        if isinstance(block, list) and len(block) == 2:
            tall, wide = (stored.group(block[0], rows), stored.group(block[1], columns))
            block_rows = max(tall, block[0])
        elif scheme.get("strategy") == "tensor":
            tall, wide, block_rows = rows, columns, 0
        else:
            tall, wide, block_rows = 1, stored.group(scheme.get("group_size"), columns), 1
        grid = (*lead, -(-rows // tall), -(-columns // wide))
        left_out = set(grid[len(scale.shape) :])
        if grid[: len(scale.shape)] == scale.shape and left_out <= {1}:
            fitting.add((tall, wide, block_rows))
    if len({block[:2] for block in fitting}) != 1:
        raise stored.wrong(
            f"scales {scale.name!r} are {list(scale.shape)} for {list(shape)}",
            "as many as one of its `config_groups` has",
        )
    return max(fitting)


def _scale(stored: Stored, path: str) -> TensorInfo:
    scale = stored.tensor(f"{path}.weight_scale", (*FLOATS, POWER, "U8"))
    return replace(scale, dtype=POWER) if scale.dtype == "U8" else scale


def _plain(stored: Stored, path: str, schemes: list[Mapping[str, Any]]) -> Encoded:
    """Find a tensor of int8 or 8-bit floats."""
    weight = stored.matrix(f"{path}.weight", ("I8", *SMALL_FLOATS), 2, 3)
    scale = _scale(stored, path)
    tall, wide, block_rows = _block(stored, scale, weight.shape, schemes)
    scales = scales_of_blocks(stored, scale, weight.shape, tall, wide)
    if weight.dtype != "I8":
        rows, columns = weight.shape[-2:]
        about = f"fp8 in blocks of {tall} by {wide}"
        if wide == columns:
            about = "fp8, per-channel" if tall == 1 else "fp8" if tall == rows else about
        return small_floats(weight, scales, scale, wide, about, block_rows)
    names = [weight.name, scale.name]
    zeros = None
    if f"{path}.weight_zero_point" in stored.tensors:
        info = stored.tensor(f"{path}.weight_zero_point", ("I8",))
        names.append(info.name)
        zeros = _signed_zeros(stored, info, weight.shape, tall, wide)
    found = Integers(
        bits=8, group=wide, integers=signed(stored, weight, 8), scales=scales, zeros=zeros
    )
    return replace(_ordered(stored, path, weight.shape, names, found), block_rows=block_rows)


def _packed(stored: Stored, path: str, schemes: list[Mapping[str, Any]]) -> Encoded:
    """Find a tensor of packed integers."""
    packed = stored.matrix(f"{path}.weight_packed", ("I32",), 2, 3)
    length = stored.tensor(f"{path}.weight_shape", ("I64", "I32"), (len(packed.shape),))
    shape = tuple(stored.read(length.name, None, None).tolist())
    *lead, words = packed.shape
    fitting = []
    for scheme in schemes:
        bits = scheme.get("num_bits", scheme.get("bits"))
        if type(bits) is int and 2 <= bits <= 8 and words == -(-shape[-1] * bits // 32):
            fitting.append((bits, scheme))
    if shape[:-1] != tuple(lead) or len({bits for bits, _ in fitting}) != 1 or shape[-1] < 1:
        raise stored.wrong(
            f"{packed.name!r} is {list(packed.shape)} for {list(shape)}",
            "the words of one of its `num_bits`",
        )
    bits, columns = fitting[0][0], shape[-1]
    scale = _scale(stored, path)
    tall, wide, block_rows = _block(stored, scale, shape, [scheme for _, scheme in fitting])
    names = [packed.name, scale.name, length.name]
    zeros = None
    if f"{path}.weight_zero_point" in stored.tensors:
        info = stored.tensor(f"{path}.weight_zero_point", ("I32", "I8"))
        names.append(info.name)
        make = _signed_zeros if info.dtype == "I8" else _packed_zeros
        zeros = make(stored, info, shape, tall, wide, bits)

    def integers(read: Read, start: int, stop: int) -> Array:
        return unpack(read(packed.name, start, stop), bits)[..., :columns]

    scales = scales_of_blocks(stored, scale, shape, tall, wide)
    found = Integers(bits=bits, group=wide, integers=integers, scales=scales, zeros=zeros)
    return replace(_ordered(stored, path, shape, names, found), block_rows=block_rows)


def _ordered(
    stored: Stored, path: str, shape: tuple[int, ...], names: list[str], found: Integers
) -> Encoded:
    """Return a tensor of integers, its columns in the order of their groups."""
    if (name := f"{path}.weight_g_idx") in stored.tensors:
        names = [*names, name]
        unused = (stored.read(name, None, None) == -1).all()
        order = None if unused else order_of_groups(stored, name, shape[-1], found.group)
        if order:
            found = replace(found, integers=_sorted(found.integers, order), order=order)
    return of_integers(shape, tuple(names), found)


def _sorted(integers: Part, order: Order) -> Part:
    def part(read: Read, start: int, stop: int) -> Array:
        return np.take(integers(read, start, stop), order(read), -1)

    return part


def _signed_zeros(
    stored: Stored, info: TensorInfo, shape: tuple[int, ...], tall: int, wide: int, bits: int = 8
) -> Part:
    """Return a reader of zero points that are stored like scales."""
    zeros = scales_of_blocks(stored, replace(info, dtype="I8"), shape, tall, wide)

    def part(read: Read, start: int, stop: int) -> Array:
        moved: Array = (zeros(read, start, stop) + (1 << (bits - 1))).astype(np.uint8)
        return moved

    return part


def _packed_zeros(
    stored: Stored, info: TensorInfo, shape: tuple[int, ...], tall: int, wide: int, bits: int
) -> Part:
    """Return a reader of zero points that are packed along the rows."""
    *lead, rows, columns = shape
    groups = -(-columns // wide)
    wanted = (*lead, -(-rows * bits // 32), groups)
    if info.shape != wanted or tall != 1:
        raise stored.wrong(f"zero points {info.name!r} are {list(info.shape)}", f"{list(wanted)}")

    def part(read: Read, start: int, stop: int) -> Array:
        words = read(info.name, start, stop) if lead else read(info.name, None, None)
        first, last = (0, rows) if lead else (start, stop)
        zeros = unpack_some(words.swapaxes(-1, -2), bits, first, last)
        return np.ascontiguousarray(zeros.swapaxes(-1, -2))

    return part


def _pairs(stored: Stored, path: str) -> Encoded:
    """Return a tensor of E2M1: MXFP4, or NVFP4 if it has a global scale."""
    packed = stored.matrix(f"{path}.weight_packed", ("U8",), 2, 3)
    shape = (*packed.shape[:-1], packed.shape[-1] * 2)
    names = [packed.name, f"{path}.weight_scale"]
    if f"{path}.weight_global_scale" in stored.tensors:
        about, group = "nvfp4", 16
        scale = stored.tensor(names[1], SMALL_FLOATS[:1])
        whole = stored.tensor(f"{path}.weight_global_scale", ("F32",))
        names.append(whole.name)
        scales = _divided(stored, scales_of_blocks(stored, scale, shape, 1, group), whole)
    else:
        about, group = "mxfp4", 32
        scale = replace(stored.tensor(names[1], ("U8", POWER)), dtype=POWER)
        scales = scales_of_blocks(stored, scale, shape, 1, group)
    integers = Integers(bits=8, group=group, integers=twice_e2m1(packed), scales=halved(scales))
    return replace(of_integers(shape, tuple(names), integers), about=about)


def _divided(stored: Stored, scales: Part, whole: TensorInfo) -> Part:
    """Return a reader of scales divided by the global one."""
    if int(np.prod(whole.shape)) != 1:
        raise stored.wrong(f"{whole.name!r} is {list(whole.shape)}", "one number")

    def part(read: Read, start: int, stop: int) -> Array:
        by = to_floats(read(whole.name, None, None), whole.dtype).reshape(-1)[0]
        with np.errstate(all="ignore"):
            return finite(scales(read, start, stop) / by, whole)

    return part
