# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files, streamed, and a memory of digests so that nothing is hashed twice.

In: paths. Out: hexadecimal digests. A remembered digest is used only while the file's identity on
its file system (device, inode, size, both times to the nanosecond) is what it was.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.disk.regular import open_regular, read_regular

#: Called with the number of bytes just done.
Progress = Callable[[int], None]

_BLOCK = 1 << 20
# A file that changes twice within one tick of its file system's clock keeps its times, so a digest
# is remembered only when the file had been left alone for longer than any tick (FAT's is 2 s).
_SETTLED_SECONDS = 2.0


def sha256_file(path: Path, progress: Progress | None = None) -> str:
    """Hash a file in blocks, using one block of memory.

    Args:
        path: The file.
        progress: Callback for every block.

    Returns:
        64 hexadecimal digits.
    """
    state = hashlib.sha256()
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    with open_regular(path, buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(view[:count])
            if progress:
                progress(count)
    return state.hexdigest()


@dataclass(frozen=True)
class DigestCache:
    """Digests of files, kept from run to run, one small file each; safe for many processes.

    Args:
        folder: Folder of the digests; created on demand.
    """

    folder: Path

    def digest(self, path: Path, progress: Progress | None = None) -> str:
        """Return a file's SHA-256, from memory if the file is what it was.

        Args:
            path: The file; a link is followed.
            progress: Callback for the bytes done; a remembered file counts at once.
        """
        identity = _identity(path)
        entry = self.folder / f"{identity[0]:x}-{identity[1]:x}.json"
        known = _recall(entry, identity)
        if known:
            if progress:
                progress(identity[2])
            return known
        result = sha256_file(path, progress)
        changed = max(identity[3], identity[4]) / 1e9
        if _identity(path) == identity and time.time() - changed > _SETTLED_SECONDS:
            self._remember(entry, identity, result)
        return result

    def _remember(self, entry: Path, identity: tuple[int, ...], result: str) -> None:
        scratch = entry.with_name(f"{entry.name}.{secrets.token_hex(8)}")
        with suppress(OSError):  # a store that cannot be written only forgets
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps({"identity": identity, "sha256": result}))
            scratch.replace(entry)


def _identity(path: Path) -> tuple[int, ...]:
    info = os.stat(path)  # noqa: PTH116 -- the digest is of the file a link leads to
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _recall(entry: Path, identity: tuple[int, ...]) -> str | None:
    try:
        known = json.loads(read_regular(entry))
        if known["identity"] == list(identity) and len(known["sha256"]) == 64:
            return str(known["sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None  # absent, or cut short by a crash: hash again
    return None
