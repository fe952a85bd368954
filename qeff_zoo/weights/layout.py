# SPDX-License-Identifier: Apache-2.0
"""Where every tensor of a data file will lie, decided before a byte is written.

The file is a safetensors file, so anything can read it, and every tensor is aligned, so that a
graph can point into it (ONNX external data: offset and length) and a runtime can map it.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from qeff_zoo.checkpoint.expressions import Tensors, shape_of, sources_of
from qeff_zoo.checkpoint.floats import FLOATS, INTEGERS
from qeff_zoo.checkpoint.safetensors_index import DTYPE_BITS
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.graph.numerics import FLOAT32, Format
from qeff_zoo.weights.quantization import block_count

#: Safetensors dtypes of 8-bit floats and their scales.
DTYPES = {
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
}
_PAGE = 4096
_LINE = 64  # bytes of a cache line: alignment of the small tensors
_LARGE = 1 << 20  # bytes from which on a tensor starts on a page


@dataclass(frozen=True, slots=True)
class Slot:
    """One initializer and what it is made of.

    Args:
        name: Name in the file; integers and 8-bit floats also have `<name>.scales`, and as their format has it
            `<name>.zero_points`, `<name>.offsets`, `<name>.super_scales`, `<name>.super_offsets` and `<name>.order`.
        expression: Value, over checkpoint tensors.
        format: Storage format.
        add: Added to every value in float32 (Gemma's norms store weight - 1).
        kept: Whether the checkpoint stores these integers, or 8-bit floats, so that they are only packed anew.
    """

    name: str
    expression: Expression
    format: Format = FLOAT32
    add: float = 0.0
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the file.

    Args:
        dtype: Safetensors dtype.
        shape: Lengths of the axes.
        offset: First byte, counted from the start of the file.
        nbytes: Number of bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Where everything will lie in the file.

    Args:
        slots: Slots by name.
        entries: Every tensor of the file in the order of its bytes, `__pad.N` fillers too.
        header: The first bytes of the file, all that come before the first tensor.
        nbytes: Length of the file.
    """

    slots: Mapping[str, Slot]
    entries: Mapping[str, Entry]
    header: bytes
    nbytes: int


def plan_file(slots: Sequence[Slot], tensors: Tensors) -> FileLayout:
    """Decide where every tensor lies.

    Tensors of 1 MiB and more come first and start on a page, the others follow and start on a cache
    line; both in the order given. Where a tensor does not end on such a boundary a filler follows,
    since the format forbids holes.

    Args:
        slots: Content of the file.
        tensors: The checkpoint's.

    Raises:
        CheckpointError: A tensor is missing, or shapes do not fit together.
        UnsupportedModelError: A checkpoint tensor has a dtype that cannot be stored as asked.
    """
    sizes = [size for slot in slots for size in _sizes(slot, tensors)]
    sizes.sort(key=lambda size: size[1].nbytes < _LARGE)
    placed: dict[str, Entry] = {}
    position = fillers = 0
    for name, size in sizes:
        boundary = _LINE if size.nbytes < _LARGE else _PAGE
        if gap := -position % boundary:
            placed[f"__pad.{fillers}"] = Entry("U8", (gap,), position, gap)
            fillers += 1
            position += gap
        if name in placed:
            raise ValueError(f"Two tensors are named {name!r}, expected every name once.")
        placed[name] = Entry(size.dtype, size.shape, position, size.nbytes)
        position += size.nbytes
    header = _header(placed)
    entries = {
        name: Entry(entry.dtype, entry.shape, len(header) + entry.offset, entry.nbytes)
        for name, entry in placed.items()
    }
    return FileLayout(
        MappingProxyType({slot.name: slot for slot in slots}),
        MappingProxyType(entries),
        header,
        len(header) + position,
    )


def nbytes_of(slot: Slot, tensors: Tensors) -> int:
    """Count the bytes of a slot: values or integers, and what belongs to them."""
    return sum(size.nbytes for _, size in _sizes(slot, tensors))


def unstorable(slot: Slot, part: Expression, error: ValueError) -> CheckpointError:
    """Return the error for values that the format of a slot does not have.

    Args:
        slot: The slot.
        part: Expression of the values.
        error: Error of rounding them.
    """
    return CheckpointError(
        f"Cannot store {slot.name!r} in {slot.format.bits} bits: {error} "
        f"Expected finite numbers in {', '.join(map(repr, sources_of(part)))}. "
        "Get the checkpoint again from its source."
    )


def _sizes(slot: Slot, tensors: Tensors) -> Iterator[tuple[str, Entry]]:
    shape, format = shape_of(slot.expression, tensors), slot.format
    found = {name: tensors[name].dtype for name in sources_of(slot.expression)}
    known = FLOATS | INTEGERS if len(shape) == 1 and format == FLOAT32 else FLOATS
    refused = [name for name in found if found[name] not in known]
    if refused:
        raise UnsupportedModelError(
            f"Cannot store {slot.name!r}: tensor {refused[0]!r} has dtype {found[refused[0]]!r}. "
            f"Expected one of {', '.join(sorted(FLOATS))}. Use an unquantized checkpoint."
        )
    if format.is_float:
        yield slot.name, _size(f"F{format.bits}", shape)
        return
    if len(shape) < 2:
        raise ValueError(f"Slot {slot.name!r} has shape {list(shape)}, {format} needs a matrix.")
    *lead, columns = shape
    if format.element:
        groups = block_count(columns, format.block or columns)
        yield slot.name, _size(DTYPES[format.element], shape)
        yield f"{slot.name}.scales", _size(DTYPES[format.scale], (*lead, groups))
        return
    if format.per_channel:
        yield slot.name, _size("I8", shape)
        yield f"{slot.name}.scales", _size("F32", tuple(lead))
        yield f"{slot.name}.zero_points", _size("I8", tuple(lead))
        return
    blocks = block_count(columns, format.block)
    yield slot.name, _size("U8", (*lead, blocks, format.block * format.bits // 8))
    factors = "I8" if format.super_block else DTYPES[format.scale]
    yield f"{slot.name}.scales", _size(factors, (*lead, blocks))
    if format.zero_points:
        yield f"{slot.name}.zero_points", _size("U8", (*lead, -(-blocks * format.bits // 8)))
    if format.offsets:
        yield f"{slot.name}.offsets", _size(factors, (*lead, blocks))
    if format.super_block:
        supers = _size(DTYPES[format.scale], (*lead, blocks // format.super_block))
        yield f"{slot.name}.super_scales", supers
        if format.offsets:
            yield f"{slot.name}.super_offsets", supers
    if format.act_order:
        yield f"{slot.name}.order", _size("I32", (columns,))


def _size(dtype: str, shape: tuple[int, ...]) -> Entry:
    return Entry(dtype, shape, 0, math.prod(shape) * DTYPE_BITS[dtype] // 8)


def _header(placed: Mapping[str, Entry]) -> bytes:
    listed = {
        name: {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.offset, entry.offset + entry.nbytes),
        }
        for name, entry in placed.items()
    }
    text = json.dumps(listed, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    return len(text).to_bytes(8, "little") + text
