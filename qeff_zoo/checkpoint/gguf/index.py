# SPDX-License-Identifier: Apache-2.0
"""GGUF files, read without trust: checked metadata, and a checked list of tensors with their byte ranges.

A header is "GGUF", a version (uint32), the numbers of tensors and of metadata (uint64 each), the metadata, then name,
shape, type and offset of each tensor; the data follow at the next multiple of the alignment. Numbers are little-endian.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import hashlib
import math
import mmap
import struct
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.disk.regular import open_regular
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

#: Tensor types by number: name, values of a block, bytes of a block. Plain ones have safetensors' names.
TYPES: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        28: ("F64", 1, 8),
        30: ("BF16", 1, 2),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        20: ("IQ4_NL", 32, 18),
        39: ("MXFP4", 32, 17),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        23: ("IQ4_XS", 256, 136),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        22: ("IQ2_S", 256, 82),
        18: ("IQ3_XXS", 256, 98),
        21: ("IQ3_S", 256, 110),
        19: ("IQ1_S", 256, 50),
        29: ("IQ1_M", 256, 56),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
    }
)
#: Names of other types by number: of llama.cpp's memory alone, of former releases, and newer ones.
_UNREAD: Mapping[int, str] = MappingProxyType(
    {
        9: "Q8_1",
        15: "Q8_K",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
        40: "NVFP4",
        41: "Q1_0",
    }
)
_VERSIONS = (2, 3)
#: Types of metadata that are one number, with their `struct` format.
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True))
_BOOL, _STRING, _ARRAY = 7, 8, 9
#: Metadata with a parameter of each layer.
_PARAMETERS = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
_MOST_HEADER = 100_000_000  # bytes; of a vocabulary of a million words it is a third
_MOST_NAME = 1024  # bytes; of tensors' names the format allows 64
_MOST_RANK = 4
_MOST_NESTED = 4


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Metadata and tensor index of a GGUF file.

    Args:
        metadata: Metadata by key: numbers, text, arrays of numbers; for other arrays, their length. Arrays of text
            whose keys were passed to `read_gguf` are lists.
        parameters: Parameters of the model that are metadata, arrays of float32, as tensors.
        tensors: Tensors by name, in the order of their bytes, with axes as in torch: the last one is contiguous.
        digest: SHA-256 of the header, hexadecimal.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    digest: str
    parameters: Mapping[str, TensorInfo] = field(default_factory=dict)


def read_gguf(path: Path, texts: Collection[str] = ()) -> GgufHeader:
    """Read a header after a check of all its values against the file.

    Args:
        path: A GGUF file; only its header is read.
        texts: Keys of metadata whose arrays of text are read; others are skipped.

    Raises:
        CheckpointError: The file is truncated, or its header violates the format.
        UnsupportedModelError: The version, or a type, is unsupported.
    """
    try:
        if not path.stat().st_size:  # which cannot be mapped
            raise _damaged(path, "it is empty")
        with open_regular(path) as file, _mapped(file.fileno()) as data:
            return _Cursor(path, data).header(texts)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"Cannot read {str(path)!r}: {error}. Expected a readable GGUF file. Check that it is there and that you "
            "may read it."
        ) from error


def _mapped(file: int) -> mmap.mmap:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ)


def read_shards(paths: Sequence[Path]) -> GgufHeader:
    """Read the headers of one checkpoint's files.

    Args:
        paths: Paths in the order of `weight_files.shards_of`.

    Returns:
        The metadata of the first file, and the tensors of all.

    Raises:
        CheckpointError: A file is damaged, or the files are not of one checkpoint.
    """
    headers = [read_gguf(path) for path in paths]
    tensors: dict[str, TensorInfo] = {}
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        split = (header.metadata.get("split.no", 0), header.metadata.get("split.count", 0) or 1)
        if split != (number, len(paths)):
            raise CheckpointError(
                f"{str(path)!r} says that it is file {split[0]} (from 0) of {split[1]}, but is named as file {number} "
                f"of {len(paths)}. Expected its own name and the other files beside it. Get all of them from their "
                "source."
            )
        if both := sorted(tensors.keys() & header.tensors.keys()):
            raise _damaged(path, f"tensor {both[0]!r} is in another file too")
        tensors |= header.tensors
    expected = headers[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors) or not tensors:
        raise _damaged(paths[0], f"{len(tensors)} tensors are there, {expected} are announced")
    digest = hashlib.sha256(" ".join(header.digest for header in headers).encode()).hexdigest()
    return GgufHeader(
        metadata=headers[0].metadata,
        tensors=MappingProxyType(tensors),
        digest=digest,
        parameters=headers[0].parameters,
    )


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} is not a whole GGUF file: {what}. Expected a header that fits the file's bytes. Get the file "
        "again from its source."
    )


class _Cursor:
    """Position in a header; reads never exceed the file.

    Args:
        path: Path for messages.
        data: The file.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0
        self.end = min(len(data), _MOST_HEADER)

    def header(self, texts: Collection[str]) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise _damaged(self.path, "it does not begin with 'GGUF'")
        version = self._number("I")
        if version not in _VERSIONS:
            other = "big-endian" if version and version & 0xFFFF == 0 else f"GGUF version {version}"
            raise UnsupportedModelError(
                f"{str(self.path)!r} is {other}. Expected little-endian GGUF of version 2 or 3. Convert the original "
                "again with a current llama.cpp."
            )
        count, pairs = self._count(24), self._count(13)
        metadata: dict[str, Any] = {}
        parameters: dict[str, TensorInfo] = {}
        for _ in range(pairs):
            key = self._text(_MOST_NAME)
            if key in metadata:
                raise _damaged(self.path, f"the metadata {key!r} occurs twice")
            metadata[key] = value = self._value(self._number("I"), keep=key in texts)
            if key in _PARAMETERS and isinstance(value, array) and value.typecode == "f" and value:
                nbytes = 4 * len(value)
                location = (self.path, self.position - nbytes, nbytes)
                parameters[key] = TensorInfo(key, "F32", (len(value),), *location)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _damaged(self.path, f"its alignment is {alignment!r}, not a power of two")
        infos = [self._tensor() for _ in range(count)]
        digest = hashlib.sha256(self.data[: self.position]).hexdigest()
        tensors = self._placed(infos, alignment)
        return GgufHeader(
            metadata=MappingProxyType(metadata),
            tensors=MappingProxyType(tensors),
            digest=digest,
            parameters=MappingProxyType(parameters),
        )

    def _bytes(self, count: int) -> bytes:
        if count > self.end - self.position:
            raise _damaged(
                self.path,
                f"its header needs {count:,} bytes at byte {self.position:,} of {self.end:,}",
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return value

    def _count(self, least: int, what: str = "entries") -> int:
        """Read a number of items, each with a minimum number of bytes."""
        count = int(self._number("Q"))
        if count * least > self.end - self.position:
            location = f"byte {self.position:,} of {self.end:,}"
            raise _damaged(self.path, f"{count:,} {what} are announced at {location}")
        return count

    def _text(self, most: int) -> str:
        length = self._count(1, "bytes of a text")
        if length > most:
            raise _damaged(self.path, f"a name has {length:,} bytes, more than {most:,}")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError as error:
            raise _damaged(self.path, f"a text is not UTF-8 ({error})") from error

    def _value(self, kind: int, *, keep: bool) -> Any:
        if kind == _STRING:
            return self._text(self.end)
        if kind == _ARRAY:
            return self._array(1, keep=keep)
        number = self._number(self._format(kind))
        return bool(number) if kind == _BOOL else number

    def _format(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise _damaged(self.path, f"the type of a metadata value is {kind}, which there is not")
        return _NUMBERS[kind]

    def _array(self, depth: int, *, keep: bool = False) -> "array[Any] | list[str] | int":
        kind = self._number("I")
        if kind not in (_STRING, _ARRAY):
            form = self._format(kind)
            size = struct.calcsize(f"<{form}")
            numbers = array(form)
            numbers.frombytes(self._bytes(size * self._count(size)))
            return numbers
        if depth > _MOST_NESTED:
            raise _damaged(self.path, f"its metadata has arrays within {_MOST_NESTED} others")
        count = self._count(8 if kind == _STRING else 12)
        if kind == _STRING and keep:
            return [self._text(self.end) for _ in range(count)]
        if kind == _STRING:
            self._skip_texts(count)
        for _ in range(count) if kind == _ARRAY else ():
            self._array(depth + 1)
        return count

    def _skip_texts(self, count: int) -> None:
        position, last, length_at = self.position, self.end - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):  # a vocabulary and its merges: a million of them
            if position > last:
                break
            position += 8 + length_at(self.data, position)[0]
        if position > self.end:
            raise _damaged(self.path, f"a text ends at byte {position:,} of {self.end:,}")
        self.position = position

    def _tensor(self) -> TensorInfo:
        """Read one tensor's name, shape, type and offset from the start of the data."""
        name = self._text(_MOST_NAME)
        rank = self._number("I")
        if not 1 <= rank <= _MOST_RANK:
            raise _damaged(
                self.path, f"tensor {name!r} has {rank} axes, the format allows 1 to {_MOST_RANK}"
            )
        shape = tuple(self._number("Q") for _ in range(rank))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in TYPES:
            described = f"{kind} ({_UNREAD.get(kind, 'unknown to this version of qeff-zoo')})"
            raise UnsupportedModelError(
                f"Tensor {name!r} of {str(self.path)!r} has the type {described}. Expected one of "
                f"{', '.join(known for known, _, _ in TYPES.values())}. Use another quantization of the model."
            )
        dtype, block, nbytes = TYPES[kind]
        elements = math.prod(shape)
        if not elements or elements > 8 * len(self.data) * block or shape[-1] % block:
            raise _damaged(self.path, f"tensor {name!r}, {dtype}, has the shape {list(shape)}")
        return TensorInfo(name, dtype, shape, self.path, offset, elements // block * nbytes)

    def _placed(self, infos: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """Add the start of the data to offsets; refuse ranges beyond the file, and overlapping ones."""
        if len({info.name for info in infos}) != len(infos):
            raise _damaged(self.path, "two tensors have one name")
        start = -(-self.position // alignment) * alignment
        placed, end = {}, start
        for info in sorted(infos, key=lambda one: one.offset):
            first = start + info.offset
            if info.offset % alignment or first < end:
                raise _damaged(
                    self.path,
                    f"tensor {info.name!r} begins at byte {first:,}, inside another or unaligned",
                )
            end = first + info.nbytes
            if end > len(self.data):
                raise _damaged(
                    self.path,
                    f"tensor {info.name!r} ends at byte {end:,} of {len(self.data):,}",
                )
            placed[info.name] = replace(info, offset=first)
        return placed
