# SPDX-License-Identifier: Apache-2.0
"""Download of files, with their digests checked.

In: files of a remote with their sizes and digests. Out: the same files, complete and verified. An interrupted transfer
is resumed by this process or a later one. Content with another digest is downloaded once more, then refused.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from qeff_zoo.disk.digests import Progress
from qeff_zoo.disk.regular import open_regular
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.pull.ranges import Ranges, in_ranges, plain_beginning
from qeff_zoo.hub.remotes.http import RangesIgnored, pause_after, pauses

#: Files that are fetched at the same time.
PARALLEL = 8
#: Ranges of large files that are fetched at the same time.
_PARALLEL_RANGES = 4
#: If a range takes longer, several help; one connection that is faster than that fills the line, or the processor.
_FAST_SECONDS = 0.25
_BLOCK = 1 << 20


class Source(Protocol):
    """What files are read from: the part of a `qeff_zoo.hub.remotes.protocol.Snapshot` that this takes."""

    @property
    def url(self) -> str:
        """Name it in messages."""

    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file's bytes from `offset` on, up to `end`."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to fetch.

    Args:
        path: Path in the remote.
        size: Bytes that it must have.
        digest: SHA-256 that it must have, in hexadecimal.
        place: Keeps a file free for it meanwhile, which has a part of it, or is absent; None where it has come already.
            Is given what counts bytes, and what waits for so many seconds.
    """

    path: str
    size: int
    digest: str
    place: Callable[[Progress, Callable[[float], None]], AbstractContextManager[Path | None]]


@dataclass
class Transfer:
    """Fetches files of one source, several at a time, and large ones in several ranges.

    Args:
        source: Source of the files.
        progress: Callback for bytes that are there and need not come again; of a negative number when
            they were wrong. Called by one thread at a time.
        received: Bytes that came from the source so far, wrong ones too.
    """

    source: Source
    progress: Progress
    received: int = 0
    _supports_ranges: bool = True
    _slots: threading.Semaphore = field(default_factory=threading.Semaphore)
    _more_slots: int = _PARALLEL_RANGES - 1
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, files: Sequence[Wanted]) -> None:
        """Complete files; on an error the others end too, and what they have stays.

        Raises:
            RemoteError: The source cannot be read, or gives what was not promised, twice.
        """
        with (
            ThreadPoolExecutor(_PARALLEL_RANGES, "qeff-zoo-range") as ranges,
            ThreadPoolExecutor(PARALLEL, "qeff-zoo-pull") as pool,
        ):
            # The largest first: it alone decides how long all take.
            ordered = sorted(files, key=lambda file: file.size, reverse=True)
            futures = [pool.submit(self._bring, file, ranges) for file in ordered]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _bring(self, file: Wanted, pool: ThreadPoolExecutor) -> None:
        with file.place(self._advance, self._pause) as target:
            if target is not None:
                self._complete(file, target, pool)

    def _complete(self, file: Wanted, target: Path, pool: ThreadPoolExecutor) -> None:
        _own(target, file.size)
        for is_first in (True, False):
            if is_first and self._supports_ranges and in_ranges(target, file.size):
                wrong, count = self._in_ranges(file, target, pool)
            else:
                wrong, count = self._in_order(file, target)
            if wrong is None:
                return
            self._advance(-count)
            target.unlink()
        raise RemoteError(
            f"{file.path!r} of {self.source.url!r} has {wrong}, also when fetched again; expected {file.size:,} bytes "
            f"with SHA-256 {file.digest}, as its manifest promises. Nothing of it was kept. Report it to the "
            "publisher, or pull from another remote."
        )

    def _in_order(self, file: Wanted, target: Path) -> tuple[str | None, int]:
        """Fetch the rest of a file; return its fault, if any, and its size in bytes."""
        state, count = hashlib.sha256(), 0
        if not plain_beginning(target, file.size):
            target.touch()
        with open_regular(target) as there:
            while block := there.read(_BLOCK):
                state.update(block)
                count += len(block)
                self._advance(len(block))
        # What is complete may be a package's file too, which is never opened for writing.
        if count < file.size:
            with target.open("ab") as output, closing(self._blocks(file, count)) as blocks:
                for block in blocks:
                    if count + len(block) > file.size:
                        return f"more than {file.size:,} bytes", count
                    output.write(block)
                    state.update(block)
                    count += len(block)
                    self._advance(len(block), received=True)
        return _verdict(file, state.hexdigest(), count), count

    def _in_ranges(
        self, file: Wanted, target: Path, pool: ThreadPoolExecutor
    ) -> tuple[str | None, int]:
        """Do the same with several ranges at a time, each hashed in its turn while later ones arrive."""
        state, halted, ignored = hashlib.sha256(), threading.Event(), False
        with Ranges(target, file.size) as ranges:
            self._advance(sum(ranges.counts))
            numbers = range(len(ranges.counts))
            futures = [pool.submit(self._range, file, ranges, n, halted) for n in numbers]
            try:
                for number, future in enumerate(futures):
                    future.result()
                    self._pause(0)
                    if not ranges.is_complete(number):
                        break
                    ranges.read(number, state.update)
            except RangesIgnored:
                ignored, self._supports_ranges = True, False
            finally:
                halted.set()
                wait(futures)  # a file without a claim has no writer
            count = sum(ranges.counts)
            if count == file.size:
                ranges.finish()
        if ignored:
            self._advance(-count)
            return self._in_order(file, target)
        return _verdict(file, state.hexdigest(), count), count

    def _range(self, file: Wanted, ranges: Ranges, number: int, halted: threading.Event) -> None:
        """Complete a range, unless it is needed no more."""
        start, end = ranges.span(number)
        offset = start + ranges.counts[number]
        with self._slots, closing(self._blocks(file, offset, end)) as blocks:
            begun = time.monotonic()
            if halted.is_set():
                return
            for block in blocks:
                ranges.write(number, block)
                self._advance(len(block), received=True)
                if time.monotonic() > begun + _FAST_SECONDS:
                    self._widen()
                if halted.is_set():
                    return

    def _widen(self) -> None:
        """Let more ranges arrive at the same time."""
        with self._lock:
            more, self._more_slots = self._more_slots, 0
        for _ in range(more):
            self._slots.release()

    def _blocks(
        self, file: Wanted, offset: int, end: int | None = None
    ) -> Generator[bytes, None, None]:
        """Read from `offset` to `end`, or to the file's, however often the connection breaks."""
        waits = pauses()
        while offset < (file.size if end is None else end):
            begun = offset
            try:
                with self.source.stream(file.path, offset=offset, end=end) as blocks:
                    for block in blocks:
                        offset, waits = offset + len(block), pauses()
                        yield block
                if offset == begun:
                    return  # there is no more of it
            except RemoteError as error:
                if (pause := pause_after(error, waits)) is None:
                    raise
                self._stopped.wait(pause)

    def _advance(self, amount: int, *, received: bool = False) -> None:
        self._pause(0)
        with self._lock:
            self.received += amount if received else 0
            self.progress(amount)

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds) if seconds else self._stopped.is_set():
            raise _Stopped


def _verdict(file: Wanted, digest: str, count: int) -> str | None:
    """Return the fault of a file, given the expected digest and size; None for none."""
    if count < file.size:
        return f"no more than {count:,} bytes"
    return None if digest == file.digest else f"SHA-256 {digest}"


def _own(target: Path, size: int) -> None:
    """Remove an unfinished file that must not be written to.

    A package has it too if its process was killed then, and nothing may be written through a shared name. What
    has all bytes is only read.
    """
    with suppress(FileNotFoundError):
        status = target.stat()
        if status.st_size != size and (status.st_nlink > 1 or not os.access(target, os.W_OK)):
            target.unlink()


class _Stopped(Exception):  # noqa: N818 -- another file could not be had, so this one is not needed
    pass
