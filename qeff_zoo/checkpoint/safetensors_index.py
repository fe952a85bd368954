# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, read without trust: a checked list of tensors, memory-mapped views.

The safetensors package returns tensors without their places in the file; the exporter needs the place (offset and
length), so the header is read here. It is 8 bytes of length, JSON of that length, then the data without a gap.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.disk.regular import open_regular
from qeff_zoo.errors import CheckpointError, did_you_mean
from qeff_zoo.terminal.sanitize import shortened

if TYPE_CHECKING:
    import numpy as np

#: Bits of one element, by safetensors dtype.
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}

#: Data types that numpy has too. BF16 is read as uint16; every other data type as uint8, its bytes.
_NUMPY: Mapping[str, str] = {
    "BOOL": "?",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
    "C64": "<c8",
}

_MAX_HEADER = 100_000_000  # bytes; the limit of the format
_MAX_RANK = 32  # of numpy 1
_MAX_ELEMENTS = 1 << 58  # so that bytes fit an int64


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a checkpoint, and its position in a file.

    Args:
        name: Name in the checkpoint.
        dtype: Safetensors dtype: "F32", "BF16", "F8_E4M3", …; for GGUF's blocks their type: "Q4_K", …
        shape: Lengths of the axes; empty for a scalar.
        path: File with its bytes.
        offset: First byte, counted from the start of the file.
        nbytes: Number of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def read_header(path: Path) -> list[TensorInfo]:
    """Return a file's tensors in the order of their bytes, after a check of all values of its header.

    Args:
        path: A safetensors file; only its header is read.

    Raises:
        CheckpointError: The file is truncated, or its header violates the format.
    """
    entries, _, data, size = _header(path)
    tensors = [_tensor(path, name, entry, data) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_layout(path, tensors, data, size)
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file's header.

    Args:
        path: A safetensors file; only its header is read.

    Raises:
        CheckpointError: The file is truncated, or its header violates the format.
    """
    return _header(path)[1]


def _header(path: Path) -> tuple[dict[str, Any], dict[str, str], int, int]:
    """Return the entries of tensors, the metadata, the start of the data, and the size of the file."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _damaged(
                    path, f"it has {size:,} bytes, its header alone would end at {length + 8:,}"
                )
            if length > _MAX_HEADER:
                raise _damaged(
                    path, f"its header has {length:,} bytes, the format allows {_MAX_HEADER:,}"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"Cannot read {str(path)!r}: {error.strerror}. Expected a readable safetensors file. "
            "Check that it is there and that you may read it."
        ) from error
    return *_entries(path, raw), 8 + length, size


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} is not a whole safetensors file: {shortened(what)}. Expected a header that describes "
        "every byte. Get the file again from its source."
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key occurs twice")
    "".join(unique).encode()  # an unpaired surrogate is not a name
    return unique


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _entries(path: Path, raw: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header does not parse ({error})") from error
    metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its header is not a JSON object with text for metadata")
    return dict(header), metadata


def _naturals(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def _tensor(path: Path, name: str, entry: Any, data: int) -> TensorInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, span = (
        fields.get("dtype"),
        _naturals(fields.get("shape")),
        _naturals(fields.get("data_offsets")),
    )
    if shape is None or span is None or len(span) != 2 or len(shape) > _MAX_RANK:
        raise _damaged(path, f"tensor {name!r} has no usable shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damaged(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if math.prod(length for length in shape if length) > _MAX_ELEMENTS:
        raise _damaged(path, f"tensor {name!r} has the impossible shape {list(shape)}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    begin, end = span
    if bits != 8 * (end - begin):
        raise _damaged(
            path,
            f"tensor {name!r}, {dtype} {list(shape)}, has {end - begin:,} bytes, not "
            f"{bits / 8:,.10g}",
        )
    return TensorInfo(name, dtype, shape, path, data + begin, end - begin)


def _check_layout(path: Path, tensors: list[TensorInfo], data: int, size: int) -> None:
    position = data
    for tensor in tensors:
        if tensor.offset != position:
            fault = (
                "overlaps the tensor before it"
                if tensor.offset < position
                else "follows unnamed bytes"
            )
            raise _damaged(path, f"tensor {tensor.name!r} at byte {tensor.offset:,} {fault}")
        position += tensor.nbytes
    if position != size:
        raise _damaged(path, f"it has {size:,} bytes, its header describes {position:,}")


def index_tensors(paths: Iterable[Path]) -> dict[str, TensorInfo]:
    """Return the tensors of several files by name.

    Args:
        paths: The safetensors files of one checkpoint.

    Raises:
        CheckpointError: A file is damaged, two files have the same name of a tensor, or no file has a tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    paths = list(paths)
    for path in paths:
        for tensor in read_header(path):
            first = tensors.setdefault(tensor.name, tensor)
            if first is not tensor:
                raise CheckpointError(
                    f"Tensor {tensor.name!r} is in {str(first.path)!r} and again in "
                    f"{str(path)!r}. Expected every tensor once. Remove the shard that does not "
                    "belong to this checkpoint."
                )
    if not tensors:
        raise CheckpointError(
            f"No tensor in {', '.join(repr(str(path)) for path in paths) or 'no file'}. Expected "
            "the model's weights. Get the checkpoint again from its source."
        )
    return tensors


class TensorReader:
    """Views of tensors in memory-mapped files, without copies, with release of pages.

    Args:
        tensors: Tensors by name, see `index_tensors`.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors
        self._maps: dict[Path, mmap.mmap] = {}

    def read(
        self, name: str, start: int | None = None, stop: int | None = None
    ) -> "np.ndarray[Any, Any]":
        """Return rows `start:stop` of a tensor's first axis, all by default.

        Args:
            name: Tensor name.
            start: First row; None for the first.
            stop: Row after the last; None for all remaining rows.

        Returns:
            A read-only view. BF16 is returned as uint16 and 8-bit floats as uint8, in the tensor's shape; smaller
            floats, and GGUF's blocks, as uint8 with the bytes of a row on the last axis.
        """
        import numpy as np

        info = self._info(name)
        dtype = np.dtype(_NUMPY.get(info.dtype, "u1"))
        shape = info.shape
        if DTYPE_BITS.get(info.dtype, 0) < 8:
            shape = _byte_shape(info)
        offset = info.offset
        if start is not None or stop is not None:
            if not shape:
                raise ValueError(f"Tensor {name!r} is a scalar, it has no rows to slice.")
            start, stop = start or 0, shape[0] if stop is None else stop
            if not 0 <= start <= stop <= shape[0]:
                raise ValueError(
                    f"Rows {start}:{stop} of tensor {name!r} are outside its {shape[0]} rows."
                )
            offset += start * math.prod(shape[1:]) * dtype.itemsize
            shape = (stop - start, *shape[1:])
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map(info.path), dtype, count, offset).reshape(shape)

    def release(self, name: str) -> None:
        """Release the memory of a tensor's pages; views stay valid, and read the file again.

        Args:
            name: Tensor name.
        """
        info = self._info(name)
        mapped = self._maps.get(info.path)
        if mapped is not None and info.nbytes and hasattr(mmap, "MADV_DONTNEED"):
            first = info.offset - info.offset % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, first, info.offset + info.nbytes - first)

    def close(self) -> None:
        """Unmap every file; one with remaining views is unmapped after them."""
        while self._maps:
            _, mapped = self._maps.popitem()
            try:
                mapped.close()
            except BufferError:  # a view still uses it: dropping the reference is enough
                continue

    def _info(self, name: str) -> TensorInfo:
        if (info := self._tensors.get(name)) is not None:
            return info
        near = did_you_mean(name, self._tensors)
        raise CheckpointError(
            f"No tensor {name!r} among the {len(self._tensors):,} of this checkpoint.{near} "
            "Check that its config.json belongs to its weights."
        )

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with open_regular(path) as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[path]


def _byte_shape(info: TensorInfo) -> tuple[int, ...]:
    rows = math.prod(info.shape[:-1])
    if rows and info.nbytes % rows:
        raise CheckpointError(
            f"Tensor {info.name!r}, {info.dtype} {list(info.shape)}, has rows of {info.nbytes * 8 // rows} "
            "bits. Expected whole bytes. Use a checkpoint whose last axis fills bytes."
        )
    return (*info.shape[:-1], info.nbytes // rows if rows else 0)
