# SPDX-License-Identifier: Apache-2.0
"""Weights: checkpoint tensors stream into one data file, each byte written once, in little memory.

`plan_file` says where every tensor will lie; `write` fills the file and digests it on the way.

    layout = plan_file([Slot("w", "model.w", format_of("int4"))], checkpoint.tensors)
    written = write(layout, checkpoint, Path("weights.safetensors"))
"""

import errno
import hashlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from types import MappingProxyType

import numpy as np

from qeff_zoo.checkpoint.expressions import (
    TensorSource,
    blocks,
    is_computed,
    rows,
    shape_of,
    sources_of,
)
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.types import Expression, Read
from qeff_zoo.errors import StoreError
from qeff_zoo.weights.layout import Entry, FileLayout, Slot, plan_file, unstorable
from qeff_zoo.weights.quantization import Array, store

from . import kept

__all__ = [
    "Entry",
    "FileLayout",
    "Slot",
    "TensorSource",
    "Written",
    "evaluate",
    "plan_file",
    "write",
]

_BLOCK = (
    1 << 18
)  # elements of a piece: all that is made of it stays in the cache until it is written
_KEPT_BLOCK = 4 * _BLOCK  # the same of integers that are packed anew: an octet each, not a float32
_PENDING = 4  # pieces on their way
_WORKERS = 2
_CHUNK = 1 << 20  # bytes read back at once


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` did.

    Args:
        sha256: Digest of the whole file, hexadecimal.
        nbytes: Length of the file.
        seconds: Wall time.
    """

    sha256: str
    nbytes: int
    seconds: float


def write(
    layout: FileLayout,
    source: TensorSource,
    path: Path,
    progress: Callable[[int], None] | None = None,
    importance: Mapping[str, Array] = MappingProxyType({}),
) -> Written:
    """Write the file and flush it to the disk.

    Args:
        layout: Layout planned from the tensors of `source`.
        source: The checkpoint.
        path: The new file; removed again when anything fails.
        progress: Called with the number of bytes that were added, from this thread.
        importance: Weight of the squared error of each column by slot: (K) of a matrix, (experts, K) of a stack.

    Raises:
        CheckpointError: A value to be quantized is infinite or not a number.
        StoreError: There is no room, or the file cannot be written.
    """
    begun = time.perf_counter()
    try:
        with path.open("x+b", buffering=0) as file:
            _reserve(file.fileno(), layout.nbytes)
            filling = _Filling(layout, source, file.fileno(), importance)
            filling.run(progress or (lambda added: None))
            os.fsync(file.fileno())
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise StoreError(
                f"Cannot write {str(path)!r} of {layout.nbytes:,} bytes: {error.strerror}. "
                "Expected a new file with room for all of it. "
                "Free some space, or choose another place with QEFF_HOME or -o."
            ) from error
        raise
    seconds = time.perf_counter() - begun
    return Written(filling.digest.hexdigest(), layout.nbytes, seconds)


def _reserve(descriptor: int, nbytes: int) -> None:
    """Take the room at once, so that a full disk is known before the work is done."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
    else:  # macOS
        os.ftruncate(descriptor, nbytes)


def evaluate(expression: Expression, source: TensorSource) -> Array:
    """Compute a whole tensor as float32.

    Args:
        expression: The tensor.
        source: The checkpoint.
    """
    return rows(expression, partial(_read_float32, source), source.tensors)


def _read_float32(source: TensorSource, name: str, start: int | None, stop: int | None) -> Array:
    return to_float32(source.read(name, start, stop), source.tensors[name].dtype)


class _Filling:
    """Workers convert pieces and write them in place, the caller's thread digests them in order."""

    def __init__(
        self,
        layout: FileLayout,
        source: TensorSource,
        descriptor: int,
        importance: Mapping[str, Array],
    ) -> None:
        self.layout, self.importance = layout, importance
        self.source = source
        self.descriptor = descriptor
        self.digest = hashlib.sha256()
        # Pieces are converted in these: memory from the heap is given back and cleared over again.
        self.buffers: SimpleQueue[Array] = SimpleQueue()
        for _ in range(_PENDING + 1):
            self.buffers.put(np.empty(_BLOCK, np.float32))

    def run(self, progress: Callable[[int], None]) -> None:
        """Write and digest everything."""
        pending: deque[Callable[[], int]] = deque()
        with ThreadPoolExecutor(_WORKERS) as pool:
            for step in self._steps(pool):
                pending.append(step)
                if len(pending) > _PENDING:
                    progress(pending.popleft()())
            while pending:
                progress(pending.popleft()())

    def _steps(self, pool: ThreadPoolExecutor) -> Iterator[Callable[[], int]]:
        """Start the work piece by piece; a step, called in order, digests and counts its bytes."""
        _write_at(self.descriptor, self.layout.header, 0)
        yield partial(self._add, self.layout.header)
        for name, entry in self.layout.entries.items():
            if name in self.layout.slots:
                yield from self._slot_steps(pool, self.layout.slots[name])
            elif name.rpartition(".")[0] in self.layout.slots:  # written with their integers
                yield partial(self._reread, entry)
            else:  # a filler: the file is zero where nothing was written
                yield partial(self._add, bytes(entry.nbytes))

    def _slot_steps(self, pool: ThreadPoolExecutor, slot: Slot) -> Iterator[Callable[[], int]]:
        tensors = self.source.tensors
        tensor = _tensor(slot, self.source)
        first, whole, reading = 0, None, tensor  # element
        for piece in blocks(slot.expression, tensors, _KEPT_BLOCK if slot.kept else _BLOCK):
            part, start, stop = piece
            if part is not whole:
                whole, reading = part, _remembering(tensor, part, self.source)
            yield partial(self._finish, pool.submit(self._fill, reading, piece, first))
            first += (stop - start) * math.prod(shape_of(part, tensors)[1:])
        yield partial(self._release, sources_of(slot.expression))

    def _fill(self, tensor: "_Tensor", piece: tuple[Expression, int, int], first: int) -> "_Filled":
        part, start, stop = piece
        slot = tensor.slot
        buffer = self.buffers.get()
        try:
            if slot.kept:
                stored = kept.read(part, self.source, start, stop, slot.format)
            else:
                raw = rows(part, tensor.read, self.source.tensors, start, stop)
                if buffer.size < raw.size:
                    buffer = np.empty(raw.size, np.float32)
                weights = self._importance_of(slot, raw.shape, first)
                stored = store(raw, tensor.dtype, slot.format, slot.add, buffer, weights)
        except ValueError as error:
            raise unstorable(slot, part, error) from error
        data = _bytes(stored.data)
        self._place(slot.name, data, first, tensor.elements)
        for name in ("scales", "zero_points", "offsets", "super_scales", "super_offsets"):
            if (array := getattr(stored, name)) is not None:
                self._place(f"{slot.name}.{name}", _bytes(array), first, tensor.elements)
        if slot.format.act_order and not first:
            order = _bytes(kept.order(slot.expression, self.source))
            self._place(f"{slot.name}.order", order, 0, tensor.elements)
        return _Filled(data, buffer)

    def _importance_of(self, slot: Slot, shape: Sequence[int], first: int) -> Array | None:
        """Return the importance of a piece: of a stack, that of its experts, or of the expert whose rows it has."""
        found = self.importance.get(slot.name)
        if found is None or found.ndim == 1:
            return found
        _, rows, columns = shape_of(slot.expression, self.source.tensors)
        expert = first // (rows * columns)
        return found[expert : expert + (shape[0] if len(shape) == 3 else 1)]

    def _place(self, name: str, data: memoryview, first: int, elements: int) -> None:
        # Where elements share bytes a piece is whole rows: its share of elements is that of bytes.
        entry = self.layout.entries[name]
        _write_at(self.descriptor, data, entry.offset + entry.nbytes * first // elements)

    def _finish(self, future: "Future[_Filled]") -> int:
        filled = future.result()
        self._add(filled.data)
        self.buffers.put(filled.buffer)
        return len(filled.data)

    def _add(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        return len(data)

    def _reread(self, entry: Entry) -> int:
        end = entry.offset + entry.nbytes
        for start in range(entry.offset, end, _CHUNK):
            self._add(os.pread(self.descriptor, min(_CHUNK, end - start), start))
        return entry.nbytes

    def _release(self, names: Sequence[str]) -> int:
        for name in names:
            self.source.release(name)
        return 0


@dataclass(frozen=True, slots=True)
class _Filled:
    """The bytes of a piece, and the buffer they may lie in."""

    data: memoryview
    buffer: Array


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A slot, how its checkpoint tensors are read, the dtype that gives, and its elements."""

    slot: Slot
    read: Read
    dtype: str
    elements: int


def _tensor(slot: Slot, source: TensorSource) -> _Tensor:
    dtypes = {source.tensors[name].dtype for name in sources_of(slot.expression)}
    elements = math.prod(shape_of(slot.expression, source.tensors))
    if len(dtypes) == 1 and not is_computed(slot.expression):
        return _Tensor(slot, source.read, dtypes.pop(), elements)
    return _Tensor(slot, partial(_read_float32, source), "F32", elements)


def _remembering(tensor: _Tensor, part: Expression, source: TensorSource) -> _Tensor:
    """Return a tensor whose reader decodes quantized matrices once, if every piece of a part is made of all their rows.

    Args:
        tensor: Tensor with the part.
        part: Expression of some of its items, which is written in pieces.
        source: The checkpoint.
    """
    names = sources_of(part)
    if not _needs_all_rows(part) or source.encoded.keys().isdisjoint(names):
        return tensor
    known, one_at_a_time = lru_cache(maxsize=len(names))(tensor.read), Lock()

    def read(name: str, start: int | None, stop: int | None) -> Array:
        with one_at_a_time:
            return known(name, start, stop)

    return replace(tensor, read=read)


def _needs_all_rows(e: Expression) -> bool:
    """Return whether rows of an expression are made of all rows of a tensor."""
    inner = [] if isinstance(e, str) else [part for part in e if isinstance(part, list)]
    return e[:2] == ["transpose", 0] or any(map(_needs_all_rows, inner))


def _bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
