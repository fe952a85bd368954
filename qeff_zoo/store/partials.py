# SPDX-License-Identifier: Apache-2.0
"""Downloads that are under way: one file for each digest, and one process at a time that writes to it.

In: the digest of content to come. Out: a private file that holds what of it an earlier process got.
Beside each lies a lock, which the system lets go of when its holder ends, however it ends.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOCK = ".lock"
_LOOK_AGAIN_SECONDS = 0.05


@dataclass(frozen=True)
class Partials:
    """The unfinished downloads of a store.

    Args:
        folder: Folder of the files; created on demand.
    """

    folder: Path

    @contextmanager
    def claim(self, digest: str, pause: Callable[[float], object] = time.sleep) -> Iterator[Path]:
        """Yield the file for content of that digest, with exclusive write access.

        It may hold a part of the content, all of it, or be absent. What is in it afterwards is kept
        for the next one who claims it. While another has it, this waits: claim nothing else before.

        Args:
            digest: SHA-256 of the whole content, in hexadecimal.
            pause: Waits for so many seconds, again and again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / digest
        while (lock := _acquire(path)) is None:
            pause(_LOOK_AGAIN_SECONDS)
        try:
            if path.exists() and not os.access(
                path, os.W_OK
            ):  # of another user, who does not write
                path.unlink()
            yield path
        finally:
            if not path.exists():
                _lock_of(path).unlink(missing_ok=True)
            os.close(lock)

    def drop(self, digest: str) -> None:
        """Remove a download that is complete elsewhere, or not wanted, unless another has claimed it."""
        path = self.folder / digest
        if not (path.exists() or _lock_of(path).exists()) or (lock := _acquire(path)) is None:
            return
        try:
            path.unlink(missing_ok=True)
            _lock_of(path).unlink(missing_ok=True)
        finally:
            os.close(lock)

    def size(self, digest: str) -> int:
        """Return the disk space of a download in bytes; missing ranges may be holes."""
        try:
            status = (self.folder / digest).stat()
        except FileNotFoundError:
            return 0
        return min(status.st_size, status.st_blocks * 512)

    def is_claimed(self, digest: str) -> bool:
        """Whether a process writes to a download now."""
        path = self.folder / digest
        if not _lock_of(path).exists():
            return False
        lock = _acquire(path)
        if lock is not None:
            os.close(lock)
        return lock is None

    def digests(self) -> list[str]:
        """List what was claimed and not dropped."""
        if not self.folder.is_dir():
            return []
        return sorted({path.name.removesuffix(_LOCK) for path in self.folder.iterdir()})


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


def _acquire(path: Path) -> int | None:
    """Lock a download until the descriptor is closed; None if another has it."""
    name = _lock_of(path)
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # of another user
        lock = os.open(name, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held it before may have removed it, and a third have made another of that name.
        if os.path.samestat(os.fstat(lock), os.stat(name)):  # noqa: PTH116
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None
