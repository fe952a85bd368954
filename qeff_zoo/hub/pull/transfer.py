# SPDX-License-Identifier: Apache-2.0
"""Bytes of a remote -> files on the disk, checked on the way.

In: files of a remote with their sizes and digests. Out: the same files, complete and of that digest. A transfer that
breaks off is resumed where it stopped, by this process or a later one; content that is not what was promised is fetched
once more and then refused.
"""

import hashlib
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from qeff_zoo.disk.digests import Progress
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.remotes.http import pause_after, pauses

#: Files that are fetched at the same time.
PARALLEL = 8
_BLOCK = 1 << 20


class Source(Protocol):
    """What files are read from: the part of a `qeff_zoo.hub.remotes.Snapshot` that this takes."""

    @property
    def url(self) -> str:
        """Name it in messages."""

    def stream(self, path: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file's bytes from `offset` on."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to fetch.

    Args:
        path: In the remote.
        size: Bytes that it must have.
        digest: SHA-256 that it must have, in hexadecimal.
        target: Where it goes; holds a beginning of it, or is absent.
    """

    path: str
    size: int
    digest: str
    target: Path


@dataclass
class Transfer:
    """Fetches files of one source, several at a time.

    Args:
        source: Where they are.
        progress: Told of bytes that are there and need not come again; of a negative number when
            they were wrong. Called by one thread at a time.
        received: Bytes that came from the source so far, wrong ones too.
    """

    source: Source
    progress: Progress
    received: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, files: Sequence[Wanted]) -> None:
        """Complete files; on an error the others end too, and what they have stays.

        Raises:
            RemoteError: The source cannot be read, or gives what was not promised, twice.
        """
        with ThreadPoolExecutor(PARALLEL, "qeff-zoo-pull") as pool:
            # The largest first: it alone decides how long all take.
            ordered = sorted(files, key=lambda file: file.size, reverse=True)
            futures = [pool.submit(self._complete, file) for file in ordered]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _complete(self, file: Wanted) -> None:
        for _ in range(2):
            wrong, count = self._continue(file)
            if wrong is None:
                return
            self._advance(-count)
            file.target.unlink()
        raise RemoteError(
            f"{file.path!r} of {self.source.url!r} has {wrong}, also when fetched again; expected {file.size:,} bytes "
            f"with SHA-256 {file.digest}, as its manifest promises. Nothing of it was kept. Tell the publisher, or "
            "pull from another remote."
        )

    def _continue(self, file: Wanted) -> tuple[str | None, int]:
        """Go on from what is there to the end; say what is wrong with it, if anything, and how many bytes it has."""
        state, count = hashlib.sha256(), 0
        with file.target.open("a+b") as output:
            output.seek(0)
            while block := output.read(_BLOCK):
                state.update(block)
                count += len(block)
                self._advance(len(block))
            with closing(self._blocks(file, count)) as blocks:
                for block in blocks:
                    output.write(block)
                    state.update(block)
                    count += len(block)
                    self._advance(len(block), received=True)
                    if count > file.size:
                        return f"more than {file.size:,} bytes", count
        if count < file.size:
            return f"no more than {count:,} bytes", count
        found = state.hexdigest()
        return (None if found == file.digest else f"SHA-256 {found}"), count

    def _blocks(self, file: Wanted, offset: int) -> Generator[bytes, None, None]:
        """Read from `offset` to the promised end, or that of the file, however often the connection breaks."""
        waits = pauses()
        while offset < file.size:
            begun = offset
            try:
                with self.source.stream(file.path, offset=offset) as blocks:
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
        if self._stopped.is_set():
            raise _Stopped
        with self._lock:
            self.received += amount if received else 0
            self.progress(amount)


class _Stopped(Exception):  # noqa: N818 -- another file could not be had, so this one is not needed
    pass
