# SPDX-License-Identifier: Apache-2.0
"""Weights: checkpoint tensors stream into one data file, each byte written once, in memory that does not grow.

`plan_file` says where every tensor will lie; `write` fills the file and digests it on the way.

    layout = plan_file([Slot("w", "model.w", "int4")], checkpoint.tensors)
    written = write(layout, checkpoint, Path("weights.safetensors"))
"""

import hashlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from qeff_zoo.errors import CheckpointError, StoreError
from qeff_zoo.expressions import (
    Array,
    Expression,
    Read,
    TensorSource,
    blocks,
    rows,
    shape_of,
    sources_of,
)
from qeff_zoo.quantization import store, to_float32
from qeff_zoo.weights_layout import Entry, FileLayout, Slot, plan_file

__all__ = ["Entry", "FileLayout", "Slot", "TensorSource", "Written", "evaluate", "plan_file", "write"]

_BLOCK = 1 << 18  # elements of a piece: all that is made of it stays in the cache until it is written
_PENDING = 4  # pieces on their way
_WORKERS = 2
_CHUNK = 1 << 20  # bytes read back at once


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` did.

    Args:
        sha256: Digest of the whole file, hexadecimal.
        nbytes: Length of the file.
        clipped: How many values were too large for float16, by name, where there were any.
        seconds: Wall time.
    """

    sha256: str
    nbytes: int
    clipped: Mapping[str, int]
    seconds: float


def write(
    layout: FileLayout,
    source: TensorSource,
    path: Path,
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Write the file and flush it to the disk.

    Args:
        layout: As planned from the tensors of `source`.
        source: The checkpoint.
        path: The new file; removed again when anything fails.
        progress: Called with the number of bytes that were added, from this thread.

    Raises:
        CheckpointError: A value to be quantized is infinite or not a number.
        StoreError: There is no room, or the file cannot be written.
    """
    begun = time.perf_counter()
    try:
        with path.open("x+b", buffering=0) as file:
            _reserve(file.fileno(), layout.nbytes)
            filling = _Filling(layout, source, file.fileno())
            filling.run(progress or (lambda added: None))
            os.fsync(file.fileno())
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(
                f"Cannot write {str(path)!r} of {layout.nbytes:,} bytes: {error.strerror}. Expected a new file with "
                "room for all of it. Free some space, or choose another place with QEFF_HOME or -o."
            ) from error
        raise
    seconds = time.perf_counter() - begun
    return Written(
        filling.digest.hexdigest(), layout.nbytes, MappingProxyType(dict(filling.clipped)), seconds
    )


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
    """Fills the file: workers convert pieces and write them in place, the caller's thread digests them in order."""

    def __init__(self, layout: FileLayout, source: TensorSource, descriptor: int) -> None:
        self.layout = layout
        self.source = source
        self.descriptor = descriptor
        self.digest = hashlib.sha256()
        self.clipped: Counter[str] = Counter()

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
        """Start the work piece by piece; each step, called in order, digests its bytes and counts them."""
        _write_at(self.descriptor, self.layout.header, 0)
        yield partial(self._add, self.layout.header)
        for name, entry in self.layout.entries.items():
            if name in self.layout.slots:
                yield from self._slot_steps(pool, self.layout.slots[name])
            elif name.removesuffix(".scales") in self.layout.slots:  # written with their integers
                yield partial(self._reread, entry)
            else:  # a filler: the file is zero where nothing was written
                yield partial(self._add, bytes(entry.nbytes))

    def _slot_steps(self, pool: ThreadPoolExecutor, slot: Slot) -> Iterator[Callable[[], int]]:
        tensors = self.source.tensors
        names = sources_of(slot.expression)
        dtypes = {tensors[name].dtype for name in names}
        read: Read = self.source.read
        if len(dtypes) > 1:
            dtypes, read = {"F32"}, partial(_read_float32, self.source)
        fill = partial(self._fill, slot, read, *dtypes)
        first = 0  # element
        for part, start, stop in blocks(slot.expression, tensors, _BLOCK):
            yield partial(self._finish, slot.name, pool.submit(fill, part, start, stop, first))
            first += (stop - start) * math.prod(shape_of(part, tensors)[1:])
        yield partial(self._release, names)

    def _fill(
        self, slot: Slot, read: Read, dtype: str, part: Expression, start: int, stop: int, first: int
    ) -> tuple[memoryview, int]:
        entries = self.layout.entries
        raw = rows(part, read, self.source.tensors, start, stop)
        try:
            stored = store(raw, dtype, slot.storage, slot.add, slot.block_size)
        except ValueError as error:
            raise CheckpointError(
                f"Cannot store {slot.name!r} as {slot.storage}: {error} "
                f"Expected finite numbers in {', '.join(map(repr, sources_of(part)))}. Get the checkpoint again."
            ) from error
        data = memoryview(stored.data.reshape(-1)).cast("B")
        # Pieces end where blocks end, so a piece's share of the bytes is its share of the elements.
        entry = entries[slot.name]
        return data, stored.clipped
