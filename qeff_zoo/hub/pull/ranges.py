# SPDX-License-Identifier: Apache-2.0
"""File that is downloaded in several ranges at once; its progress survives a kill at any moment.

In: an unfinished file. Out: the same file, and the progress of each range. The progress is stored behind the end of the
content. An unfinished file that is longer than its content therefore has a progress block; a shorter one is a prefix of
the content:

    content, with holes │ up to a page │ number of downloaded bytes of each range: 8 bytes each, little-endian

A number is written after its bytes. The block is within one page, so no write of it is partial.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_PAGE = 4096
_COUNT = struct.Struct("<Q")
_MOST_RANGES = _PAGE // _COUNT.size
#: Bytes of a range, but of a file so large that there would be too many.
RANGE = 32 << 20
_BLOCK = 1 << 20


@dataclass
class Ranges:
    """An unfinished file, opened to be written in several places at once.

    Args:
        path: Path of the file, which is created if it is absent.
        size: Bytes that it will have.
        counts: Bytes that are there, by range.
    """

    path: Path
    size: int
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._begin()
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self) -> None:
        length, note = os.fstat(self._file).st_size, _note_place(self.size)
        if length <= self.size:
            number = min(_MOST_RANGES, -(-self.size // RANGE))
            spans = [self._span(n, number) for n in range(number)]
            self.counts = [min(max(length - start, 0), end - start) for start, end in spans]
            os.pwrite(self._file, b"".join(map(_COUNT.pack, self.counts)), note)
            return
        page = os.pread(self._file, _PAGE, note)
        self.counts = [count for (count,) in _COUNT.iter_unpack(page[: len(page) // 8 * 8])]
        spans = [self.span(number) for number in range(len(self.counts))]
        lengths = [end - start for start, end in spans]
        if not self.counts or any(map(int.__gt__, self.counts, lengths)):  # not from here
            os.ftruncate(self._file, 0)
            self._begin()

    def __enter__(self) -> "Ranges":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def span(self, number: int) -> tuple[int, int]:
        """Return where a range begins and ends in the file."""
        return self._span(number, len(self.counts))

    def _span(self, number: int, ranges: int) -> tuple[int, int]:
        length = -(-self.size // ranges)
        return min(number * length, self.size), min((number + 1) * length, self.size)

    def is_complete(self, number: int) -> bool:
        """Whether a range is complete."""
        start, end = self.span(number)
        return self.counts[number] == end - start

    def write(self, number: int, block: bytes) -> None:
        """Write the next bytes of a range; of each range by one thread at a time."""
        start, _ = self.span(number)
        rest = memoryview(block)
        while rest:
            written = os.pwrite(self._file, rest, start + self.counts[number])
            self.counts[number] += written
            rest = rest[written:]
        offset = _note_place(self.size) + number * _COUNT.size
        os.pwrite(self._file, _COUNT.pack(self.counts[number]), offset)

    def read(self, number: int, take: Callable[[memoryview], Any]) -> None:
        """Hand over the bytes of a complete range, a block at a time."""
        offset, end = self.span(number)
        buffer = memoryview(bytearray(_BLOCK))
        while offset < end:
            count = os.preadv(self._file, [buffer[: end - offset]], offset)
            if not count:
                return  # it was cut: its digest will differ
            take(buffer[:count])
            offset += count

    def finish(self) -> None:
        """Remove the note: the file is what it will be."""
        os.ftruncate(self._file, self.size)


def in_ranges(path: Path, size: int) -> bool:
    """Whether a file is fetched in ranges: it is large, and not complete here."""
    return size > RANGE and not (path.exists() and path.stat().st_size == size)


def plain_beginning(path: Path, size: int) -> int:
    """Make of an unfinished file a plain beginning, as long as one is there.

    Args:
        path: The file, or nothing.
        size: Bytes that it will have.

    Returns:
        Bytes that it has now.
    """
    if not path.exists():
        return 0
    if (length := path.stat().st_size) <= size:
        return length
    with Ranges(path, size) as ranges:
        numbers = range(len(ranges.counts))
        first = next((n for n in numbers if not ranges.is_complete(n)), None)
        length = size if first is None else ranges.span(first)[0] + ranges.counts[first]
    os.truncate(path, length)
    return length


def _note_place(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
