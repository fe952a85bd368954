# SPDX-License-Identifier: Apache-2.0
"""A remote that is a folder: `file:///path`. Needs no network, so it is there offline too."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import seen
from qeff_zoo.hub.index import INDEX_LIMIT, INDEX_NAME, Index, decode
from qeff_zoo.hub.seen import Seen
from qeff_zoo.hub.transport import read_all
from qeff_zoo.package.manifest import unsafe_path

_PIECE = 1 << 20
_INDEXES = ".index"  # see `qeff_zoo.hub.folder_commits`


@dataclass(frozen=True)
class FolderSnapshot:
    """A folder, and its index as it was when it was read. See `qeff_zoo.hub.remotes.Snapshot`."""

    url: str
    index: Index
    folder: Path

    def read(self, path: str, *, limit: int) -> bytes:
        with self.stream(path) as pieces:
            return read_all(pieces, limit, f"{path!r} of {self.url!r}")

    @contextmanager
    def stream(self, path: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        with _reading(self.url, path):
            file = self._file(path).open("rb")
        with file:
            file.seek(offset)
            yield self._pieces(file, path)

    def _pieces(self, file: BinaryIO, path: str) -> Iterator[bytes]:
        with _reading(self.url, path):
            while piece := file.read(_PIECE):
                yield piece

    def _file(self, path: str) -> Path:
        if reason := unsafe_path(path):
            raise RemoteError(
                f"Cannot read {path!r} of {self.url!r}: the path {reason}. Expected a file of the remote."
            )
        return self.folder / path


@dataclass(frozen=True)
class FolderRemote:
    """A folder with packages. See `qeff_zoo.hub.remotes.Remote`.

    Args:
        url: As it was given.
        path: Of the folder.
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
        found = seen.newest(self.url, self._fetch)
        return FolderSnapshot(self.url, found.index, self.folder) if found else None

    def _fetch(self, before: Seen | None) -> Seen | None:
        published, known, tried = None, serials(self.folder), None
        # An index is emptied when there are newer ones, so the folder is then listed again.
        while known and published is None and known != tried:
            published = self._indexed(index_file(self.folder, known[-1]), before)
            known, tried = serials(self.folder), known
        shown = self._indexed(self.folder / INDEX_NAME, before)
        found = [seen for seen in (published, shown) if seen]
        # Usually the same. A folder that was copied may lack the one; a publisher that died leaves the other behind.
        return max(found, key=lambda seen: seen.index.serial) if found else None

    def _indexed(self, file: Path, before: Seen | None) -> Seen | None:
        if not file.exists() or not file.stat().st_size:
            return None
        path = file.relative_to(self.folder).as_posix()
        content = FolderSnapshot(self.url, Index(), self.folder).read(path, limit=INDEX_LIMIT)
        return before if before and before.content == content else Seen(content, decode(content))


def serials(folder: Path) -> list[int]:
    """List the serials of the indexes that were published to a folder, ascending."""
    area = folder / _INDEXES
    names = (path.name for path in area.iterdir()) if area.is_dir() else ()
    return sorted(int(name) for name in names if name.isdecimal())


def index_file(folder: Path, serial: int) -> Path:
    """Tell where the index of a serial is, or would be."""
    return folder / _INDEXES / f"{serial:012}" / INDEX_NAME


@contextmanager
def _reading(url: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RemoteError(
            f"Cannot read {path!r} of {url!r}: {error.strerror or error}. Expected a file that this user may read. "
            "Check the folder and its permissions."
        ) from error
