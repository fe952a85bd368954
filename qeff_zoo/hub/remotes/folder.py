# SPDX-License-Identifier: Apache-2.0
"""A remote that is a folder: `file:///path`. Needs no network, so it is there offline too.

    index.json.gz     the root of the index
    index/…           its other files
    packages/…        what it lists
    .staging/         files on their way
    .lock             held while the index and what follows from it change

A commit puts its files in place first, still invisible. Then it holds the lock for a moment: the index is read
and changed, its new files are written beside the old ones, and its root is replaced in one step. A publisher that dies
lets go of the lock, and what it left undone the next does. Who has read the root goes on reading the old files, which
stay for a day.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.regular import open_regular, read_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.staging import settle, staged, staging_folders, sweep, sync, write_durably
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.index import INDEX_NAME, Index, Sign
from qeff_zoo.hub.index_files import FOLDER_NAME, INDEX_LIMIT, decode, stale_files
from qeff_zoo.hub.remotes.http import read_all
from qeff_zoo.hub.remotes.protocol import FOLDER, Content, Holdings, changed, require_safe
from qeff_zoo.hub.trust import index_cache
from qeff_zoo.hub.trust.index_cache import FetchedIndex, reading
from qeff_zoo.package.files import walk

_PIECE = 1 << 20
_STAGING, _LOCK = ".staging", ".lock"
_PATIENCE = 120.0  # seconds; the lock is held for the time that a few small files take
_STALE_SECONDS = (
    24 * 3600.0
)  # more than a reader needs who has read the root, or a copy to a web server


# --- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FolderSnapshot:
    """A folder, and its index as it was when it was read. See `qeff_zoo.hub.remotes.protocol.Snapshot`."""

    url: str
    index: Index
    folder: Path

    def read(self, path: str, *, limit: int) -> bytes:
        with self.stream(path) as pieces:
            return read_all(pieces, limit, f"{path!r} of {self.url!r}")

    @contextmanager
    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        require_safe(path, self.url)
        with _reading(self.url, path):
            file = open_regular(self.folder / path)
        with file:
            file.seek(offset)
            yield self._pieces(file, path, sys.maxsize if end is None else end - offset)

    def _pieces(self, file: BinaryIO, path: str, size: int) -> Iterator[bytes]:
        with _reading(self.url, path):
            while size > 0 and (piece := file.read(min(size, _PIECE))):
                size -= len(piece)
                yield piece


@contextmanager
def _reading(url: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RemoteError(
            f"Cannot read {path!r} of {url!r}: {error.strerror or error}. Expected a file that this user may read. "
            "Check the folder and its permissions."
        ) from error


@dataclass(frozen=True)
class FolderRemote:
    """A folder with packages. See `qeff_zoo.hub.remotes.protocol.WritableRemote`.

    Args:
        url: URL as the user wrote it.
        path: Path of the folder.
        read_only: Whether nothing is published here.
    """

    url: str
    path: str
    read_only: bool = False

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.path)

    def snapshot(self, *, offline: bool = False) -> FolderSnapshot | None:
        index = index_cache.newest(self.url, self._fetch)
        if index is None:
            return None
        snapshot = FolderSnapshot(self.url, index.index, self.folder)
        return replace(snapshot, index=reading(self.url, snapshot))

    def _fetch(self, before: FetchedIndex | None) -> FetchedIndex | None:
        content = self.present(INDEX_NAME, limit=INDEX_LIMIT)
        if content is None:
            return None
        if before and before.content == content:
            return before
        return FetchedIndex(content, decode(content))

    def present(self, path: str, *, limit: int) -> bytes | None:
        if not (self.folder / path).exists():
            return None
        return FolderSnapshot(self.url, Index(), self.folder).read(path, limit=limit)

    def holdings(self, package: str) -> Holdings:
        folder = self.folder / package
        names = walk(folder) if package else ()
        files = {f"{package}/{name}": f"sha256:{sha256_file(folder / name)}" for name in names}
        return Holdings(visibility=FOLDER, index=self._index(), files=files)

    def _index(self) -> Index:
        shown = self.snapshot()
        return shown.index if shown else Index()

    # --- writing -------------------------------------------------------------------------------

    def commit(
        self,
        upload: Mapping[str, Content],
        update: Callable[[Index], Index],
        message: str,
        *,
        create_pr: bool = False,
        sign: Sign | None = None,
    ) -> str:
        if create_pr:
            raise PublishError(
                f"{self.url!r} has no pull requests; expected a Hub repository. Leave out --create-pr."
            )
        given = {path: content for path, content in upload.items() if not callable(content)}
        computed = {path: content for path, content in upload.items() if callable(content)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(staging_folders(self.folder / _STAGING))
            _place(self.folder, given)
            with self._locked():
                before = self._index()
                after, written = changed(self.url, before, update(before), sign)
                for path, content in written.items():
                    (self.folder / path).parent.mkdir(exist_ok=True)
                    write_durably(self.folder / path, content)
                _place(self.folder, {path: write(after) for path, write in computed.items()})
                self._retire(stale_files(before, after), {*written})
        except OSError as error:
            raise PublishError(
                f"Cannot publish to {self.url!r}: {error}. Expected a folder that this user may write, with room. "
                "Check its permissions and space, then publish again."
            ) from error
        return self.url

    def _retire(self, stale: Collection[str], written: Collection[str]) -> None:
        """Note when files of the index became stale, and remove those of their prefixes that did a day ago."""
        for path in stale:
            with suppress(OSError):  # one of another user's
                os.utime(self.folder / path)
        names = {Path(path).name for path in (*stale, *written)}
        prefixes = {name.partition("-")[0] for name in names}
        for file in (self.folder / FOLDER_NAME).glob("*-*"):
            is_old = file.name.partition("-")[0] in prefixes and file.name not in names
            with suppress(OSError):
                if is_old and file.stat().st_mtime < time.time() - _STALE_SECONDS:
                    file.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        path = self.folder / _LOCK
        try:
            with FileLock(path, timeout=_PATIENCE, mode=0o666):
                yield
        except Timeout as error:
            raise PublishError(
                f"Cannot publish to {self.url!r}: another process has held {str(path)!r} for {_PATIENCE:.0f} seconds. "
                "Expected a quiet moment. See what publishes there, then publish again."
            ) from error


def _place(root: Path, contents: Mapping[str, Path | bytes]) -> None:
    """Put files in place, each whole or not at all; a package that is there already stays untouched."""
    for path in contents:
        if reason := unsafe_path(path):
            raise PublishError(
                f"Cannot publish {path!r}: the path {reason}. Expected a file of the remote."
            )
    missing = {
        path: content for path, content in contents.items() if not _is_there(root / path, content)
    }
    if not missing:
        return
    with staged(root / _STAGING, "publish") as folder:
        for path, content in missing.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, folder / path)
            else:
                (folder / path).write_bytes(content)
        settle(folder)
        for package in {package_ for path in missing if (package_ := _package_of(path))}:
            _place_package(folder / package, root / package)
        for path, content in missing.items():
            if _is_there(root / path, content):
                continue
            if _package_of(path) and (root / path).exists():
                raise PublishError(
                    f"The remote has another {path}, which another process just put there, and nothing is "
                    "overwritten. Expected none, or the same. Pull that package, or publish elsewhere."
                )
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).replace(root / path)
    for parent in {(root / path).parent for path in missing}:
        sync(parent)


def _package_of(path: str) -> str | None:
    """Return the folder of the package that a file is of; None for one of no package."""
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[0] == "packages" else None


def _place_package(source: Path, target: Path) -> None:
    """Put a package's files in place as one, unless something is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _is_there(target: Path, content: Path | bytes) -> bool:
    try:
        if isinstance(content, bytes):
            return target.stat().st_size == len(content) and read_regular(target) == content
        same_size = target.stat().st_size == content.stat().st_size
        return same_size and sha256_file(target) == sha256_file(content)
    except FileNotFoundError:
        return False
