# SPDX-License-Identifier: Apache-2.0
"""Packages in one file, for machines without a network: a folder remote inside an uncompressed tar.

In: packages, or an untrusted bundle. Out: a bundle, or the same packages in the store. An import reads a bundle as a
pull reads a remote, and opens no socket.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from qeff_zoo.disk.digests import Progress
from qeff_zoo.disk.regular import only_regular, open_regular, read_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.staging import staged_beside
from qeff_zoo.errors import PackageError, RemoteError, StoreError
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import (
    INDEX_LIMIT,
    KEPT,
    decode,
    decode_file,
    file_path,
    files_of,
    stale_files,
)
from qeff_zoo.hub.index_tree import Node, Reference
from qeff_zoo.hub.pull.fetch import download_description, origin_of, require_as_indexed
from qeff_zoo.hub.pull.repair import Repairer
from qeff_zoo.hub.trust.usage import require_usable
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

from . import Pulled, Puller

_BLOCK = 1 << 20
_MOST_MEMBERS = 100_000


# --- export ------------------------------------------------------------------------------------


def export_bundle(
    packages: Sequence[Package], output: Path, reporter: Reporter | None = None
) -> int:
    """Write packages, with their signatures, to one file that appears whole or not at all.

    Args:
        packages: Complete packages.
        output: The file; an existing file is replaced.
        reporter: Shows progress.

    Returns:
        Size of the bundle in bytes.

    Raises:
        PackageError: A file of a package differs from its manifest.
        TrustError: A package was not built here, and the trust policy refuses it.
        StoreError: The file cannot be written.
    """
    for package in packages:
        require_usable(package, Store())
    chosen = list({package.build_key: package for package in packages}.values())
    total = sum(package.size for package in chosen)
    Store.require_space(output.parent, total, "the bundle")
    try:
        with (
            Stopwatch(reporter or Silent()).stage("bundle", total) as advance,
            staged_beside(output) as folder,
            (folder / output.name).open("xb") as file,
        ):
            with tarfile.TarFile(fileobj=file, mode="w", copybufsize=_BLOCK) as tar:
                _write(tar, chosen, advance)
            file.flush()
            os.fsync(file.fileno())
            (folder / output.name).replace(output)
    except OSError as error:
        raise StoreError(
            f"Cannot write the bundle {str(output)!r}: {error.strerror or error}; expected a folder that this user may "
            "write, with room. Give another file."
        ) from error
    return output.stat().st_size


def _write(tar: tarfile.TarFile, packages: Sequence[Package], advance: Progress) -> None:
    index = Index()
    for package in packages:
        content = read_regular(package.path / MANIFEST_NAME)
        signature = package.path / SIGNATURE_NAME
        entry = Entry.of(package.manifest, content, signed=signature.is_file())
        index = index.with_entry(entry)
        _add(tar, f"{entry.path}/{MANIFEST_NAME}", content)
        if entry.signed:
            _add(tar, f"{entry.path}/{SIGNATURE_NAME}", read_regular(signature))
        for file in package.manifest["files"]:
            with _Checked(package, file, advance) as source:
                tar.addfile(_member(f"{entry.path}/{file['path']}", file["size"]), source)
    for path, content in files_of(index).items():
        _add(tar, path, content)


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of a file, equal on every machine."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_member(name, len(content)), io.BytesIO(content))


class _Checked(io.FileIO):
    """A package's file that is hashed while it is read, and must have been right when it is closed."""

    def __init__(self, package: Package, file: Mapping[str, Any], advance: Progress) -> None:
        super().__init__(package.path / file["path"], opener=only_regular)
        self._package, self._file, self._advance = package, file, advance
        self._state = hashlib.sha256()

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._state.update(block)
        self._advance(len(block))
        return block

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close()
        if kind is None and f"sha256:{self._state.hexdigest()}" != self._file["digest"]:
            raise PackageError(
                f"{self._file['path']!r} of package {str(self._package.path)!r} is damaged; expected "
                f"{self._file['digest']}. Run `qeff-zoo repair {self._package.build_key[:16]}`, then export it again."
            )


# --- import ------------------------------------------------------------------------------------


def import_bundle(
    path: Path, store: Store | None = None, reporter: Reporter | None = None
) -> list[Pulled]:
    """Bring a bundle's packages into the store, each checked as if it were pulled.

    Packages that the store has are read in full; damaged files of these are replaced, with a warning.

    Args:
        path: The bundle.
        store: Destination store; None for the one that `QEFF_HOME` names.
        reporter: Shows progress.

    Raises:
        RemoteError: The file is not a bundle, is damaged, or has members that a bundle must not have.
        TrustError: The trust policy refuses a package.
        StoreError: There is no room.
    """
    snapshot = open_bundle(path)
    puller = Puller(store or Store(), reporter or Silent())
    return [_import(puller, snapshot, entry) for entry in snapshot.index.entries]


def _import(puller: Puller, snapshot: "BundleSnapshot", entry: Entry) -> Pulled:
    origin = origin_of(snapshot, entry)
    described = download_description(snapshot, origin)
    require_as_indexed(described.manifest, described.content, origin, entry)
    folder, mended = puller.store.folder(described.build_key), None
    if folder.is_dir():
        mended = Repairer(puller.store, puller.reporter, (snapshot, origin)).mend(folder)
    pulled = puller.pull(snapshot, origin, entry)
    if mended is None or not mended.problems:
        return pulled
    problems = "; ".join(mended.problems[:5])
    return replace(
        pulled,
        hit=False,
        bytes_transferred=mended.bytes_transferred + pulled.bytes_transferred,
        warnings=(*pulled.warnings, f"The store's copy was damaged, and is mended: {problems}."),
    )


@dataclass(frozen=True)
class BundleSnapshot:
    """A bundle, read as any remote is. See `qeff_zoo.hub.remotes.protocol.Snapshot`.

    Args:
        url: URL of the file.
        index: Index of the bundle.
        path: The file.
        members: Offset and size of each file in the bundle, by path.
    """

    url: str
    index: Index
    path: Path
    members: Mapping[str, tuple[int, int]]

    def read(self, path: str, *, limit: int) -> bytes:
        """Read a small file, whole."""
        _, size = self._place(path)
        if size > limit:
            raise _refused(self.path, f"{path!r} has {size:,} bytes", f"at most {limit:,}")
        with self.stream(path) as pieces:
            return b"".join(pieces)

    @contextmanager
    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Read a file in pieces, from a byte on, up to another."""
        start, size = self._place(path)
        with self._reading():
            file = open_regular(self.path)
        with file:
            file.seek(start + offset)
            yield self._pieces(file, (size if end is None else min(size, end)) - offset)

    def _pieces(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        with self._reading():
            while size > 0 and (piece := file.read(min(size, _BLOCK))):
                size -= len(piece)
                yield piece

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _refused(self.path, str(error), "a file that can be read") from error

    def _place(self, path: str) -> tuple[int, int]:
        if path not in self.members:
            raise _refused(self.path, f"it has no {path!r}", "all that its index lists")
        return self.members[path]


def open_bundle(path: Path) -> BundleSnapshot:
    """Check every member of a bundle, then its index.

    Args:
        path: The file.

    Raises:
        RemoteError: The file is not a bundle, or has members that a bundle must not have.
    """
    try:
        with (
            _Headers(path, opener=only_regular) as file,
            tarfile.open(fileobj=file, mode="r:") as tar,
        ):
            members = _members(tar, path)
    except (OSError, tarfile.TarError, ValueError) as error:
        raise _refused(path, str(error), "an uncompressed tar") from error
    bundle = BundleSnapshot(path.absolute().as_uri(), Index(), path, members)

    @lru_cache(maxsize=KEPT)
    def read(prefix: str, reference: Reference) -> Node:
        content = bundle.read(file_path(prefix, reference), limit=INDEX_LIMIT)
        return decode_file(content, prefix, reference)

    index = replace(decode(bundle.read(INDEX_NAME, limit=INDEX_LIMIT)), read=read)
    folders = {entry.path for entry in index.entries}
    for name in members.keys() - {INDEX_NAME, *stale_files(index, Index())}:
        if "/".join(name.split("/")[:3]) not in folders:
            raise _refused(path, f"it has {name!r}", "only files of packages that its index lists")
    return BundleSnapshot(bundle.url, index, path, members)


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    end = path.stat().st_size
    for member in tar:
        name = member.name
        if not member.isreg() or member.issparse():
            raise _refused(path, f"its member {name!r} is not a plain file", "nothing else")
        if reason := unsafe_path(name):
            raise _refused(path, f"the path of its member {name!r} {reason}", "a safe path")
        if name in members or len(members) == _MOST_MEMBERS:
            raise _refused(path, f"it has {name!r} twice, or too many members", "each file once")
        if not 0 <= member.size <= end - member.offset_data:
            raise _refused(path, f"it ends within its member {name!r}", "all of it")
        members[name] = (member.offset_data, member.size)
    return members


class _Headers(io.FileIO):
    """File that returns at most a block per read, so that no header fills the memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _BLOCK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _refused(path: Path, actual: str, expected: str) -> RemoteError:
    return RemoteError(
        f"Cannot import the bundle {str(path)!r}: {actual}; expected {expected}. Copy it again, or export it again "
        "with `qeff-zoo bundle export`."
    )
