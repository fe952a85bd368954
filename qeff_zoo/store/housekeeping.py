# SPDX-License-Identifier: Apache-2.0
"""Inventory of a store: its content, its integrity, and what can be removed.

In: a store's folders. Out: entries, problems, and removals that spare whatever a process uses.
"""

import errno
import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.disk.digests import Progress, sha256_file
from qeff_zoo.disk.processes import is_held, used_paths
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.staging import abandoned, discard, remove, retire, staging_folders, write_durably
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.files import misplaced, walk
from qeff_zoo.package.manifest import MANIFEST_NAME, parse
from qeff_zoo.store.origins import origin_problem
from qeff_zoo.store.partials import Partials

#: Errors of a disk that takes nothing more.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_INDEX_NAME = "files.json"  # a graph's files: path -> [size, SHA-256]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something that the store holds.

    Args:
        kind: "package", "graph", "companions" (small files), "staging", "partial" (a download)
            or "failed".
        key: Name of the folder or file.
        path: Folder of the package, or file of a download.
        size: Bytes of all files in it.
        used: Time of the last use or of its creation, in seconds since 1970.
        state: "complete", "damaged", "live", "abandoned" or "failed".
    """

    kind: str
    key: str
    path: Path
    size: int
    used: float
    state: str


@dataclass(frozen=True)
class Layout:
    """Where a store keeps what.

    Args:
        root: The store's folder.
    """

    root: Path

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def graphs(self) -> Path:
        return self.root / "graphs"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def outcomes(self) -> Path:
        return self.root / "outcomes"

    @property
    def failed(self) -> Path:
        return self.root / "failed"

    @property
    def used(self) -> Path:
        return self.root / "used"

    @property
    def digests(self) -> Path:
        return self.root / "digests"

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    @property
    def companions(self) -> Path:
        return self.root / "companions"

    @property
    def partials(self) -> Path:
        return self.root / "partials"

    def touch(self, key: str) -> None:
        """Note that something is used now."""
        with suppress(OSError):  # a store that is shared read-only remembers nothing
            self.used.mkdir(parents=True, exist_ok=True)
            (self.used / key).touch()

    def last_used(self, path: Path) -> float:
        """Return when the entry at `path` was last used, or else created."""
        for witness in (self.used / path.name, path):
            with suppress(OSError):
                return witness.stat().st_mtime
        return time.time()


def entries(layout: Layout) -> list[Entry]:
    """List everything a store holds, by kind and key."""
    return list(_entries(layout))


def _entries(layout: Layout) -> Iterator[Entry]:
    for kind, state, path in _states(layout):
        used = layout.last_used(path)
        partial = kind == "partial"
        size = Partials(path.parent).size(path.name) if partial else _size(path)
        yield Entry(kind=kind, key=path.name, path=path, size=size, used=used, state=state)


def _states(layout: Layout) -> Iterator[tuple[str, str, Path]]:
    for path in _children(layout.packages):
        yield "package", "damaged" if _package_problem(path) else "complete", path
    for path in _children(layout.graphs):
        yield "graph", "damaged" if graph_problems(path) else "complete", path
    for path in _children(layout.companions):
        yield "companions", "complete", path
    for path in _children(layout.failed):
        yield "failed", "failed", path
    for path in staging_folders(layout.staging):
        yield "staging", "abandoned" if abandoned(path) else "live", path
    partials = Partials(layout.partials)
    for digest in partials.digests():
        state = "live" if partials.is_claimed(digest) else "abandoned"
        yield "partial", state, layout.partials / digest


def unneeded(layout: Layout, max_idle: float | None, keep: Collection[str]) -> list[Entry]:
    """List what can go: abandoned staging and downloads, failed builds, and what was unused for long.

    Args:
        layout: The store.
        max_idle: Seconds that packages, graphs and companions may lie unused; None for any number.
        keep: Keys to leave in any case.
    """
    busy = in_use(layout)
    limit = None if max_idle is None else time.time() - max_idle
    return [
        entry
        for entry in _entries(layout)
        if (entry.state in ("abandoned", "failed") or _is_idle(entry, limit))
        and entry.key not in keep
        and entry.path.resolve() not in busy
    ]


def in_use(layout: Layout) -> set[Path]:
    """List the files and folders of a store that live processes have mapped or open, and packages in use."""
    busy = {Path(path) for path in used_paths(layout.root)}
    packages = layout.packages.resolve()
    busy |= {path for path in _children(packages) if is_held(path / MANIFEST_NAME)}
    busy.update(*[path.parents for path in busy])
    return busy


def freed(folders: Collection[Path]) -> int:
    """Count the bytes that the disk has more without some folders: not those of files that have names elsewhere."""
    names: dict[tuple[int, int], list[os.stat_result]] = {}
    for folder in folders:
        for name in walk(folder):
            with suppress(OSError):
                info = (folder / name).lstat()
                names.setdefault((info.st_dev, info.st_ino), []).append(info)
    return sum(found[0].st_size for found in names.values() if len(found) >= found[0].st_nlink)


def _is_idle(entry: Entry, limit: float | None) -> bool:
    ages = entry.kind in ("package", "graph", "companions")
    return limit is not None and ages and entry.used < limit


def discard_entry(layout: Layout, entry: Entry) -> None:
    """Remove an entry: its name at once, its files after.

    On a full disk there is no room for the folder that this takes: then what makes it complete goes first.
    """
    if entry.kind == "partial":
        Partials(layout.partials).drop(entry.key)
        return
    if entry.kind == "staging":
        discard(entry.path)
        return
    try:
        retire(entry.path, layout.staging)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        (entry.path / MANIFEST_NAME).unlink(missing_ok=True)
        remove(entry.path)


def forget(layout: Layout, max_idle: float) -> None:
    """Drop digests computed longer ago than that, and notes about entries that are gone."""
    limit = time.time() - max_idle
    noted = layout.packages, layout.graphs, layout.companions
    for note in _children(layout.used, folders=False):
        if not any((folder / note.name).exists() for folder in noted):
            note.unlink(missing_ok=True)
    for note in _children(layout.sources, folders=False):
        if not (layout.packages / note.name.partition(".")[0]).exists():  # .1: its first adapter
            note.unlink(missing_ok=True)
    for note in _children(layout.digests, folders=False):
        with suppress(OSError):
            if note.stat().st_mtime < limit:
                note.unlink()


def verify(layout: Layout, progress: Progress | None = None) -> dict[str, list[str]]:
    """Read every byte of every package and graph.

    Args:
        layout: The store.
        progress: Callback for the bytes read.

    Returns:
        Problems by key; an empty list for what is intact.
    """
    problems = {path.name: _package_problems(path, progress) for path in _children(layout.packages)}
    for path in _children(layout.graphs):
        problems[path.name] = graph_problems(path, progress)
    return problems


def _package_problems(folder: Path, progress: Progress | None) -> list[str]:
    problem = _package_problem(folder) or origin_problem(folder)
    return [problem] if problem else Package.open(folder).verify(progress)


def _package_problem(folder: Path) -> str:
    try:
        key = Package.open(folder).build_key
    except PackageError as error:
        return str(error)
    return "" if key == folder.name else f"its key is {key!r}, expected its name {folder.name!r}"


def key_of_manifest(layout: Layout, digest: str) -> str | None:
    """Find the package whose manifest.json has that SHA-256."""
    for folder in _children(layout.packages):
        with suppress(OSError):
            if sha256_file(folder / MANIFEST_NAME) == digest:
                return folder.name
    return None


def keys_of_program(layout: Layout, key: str) -> Iterator[str]:
    """Name the packages whose manifest.json has a program of that key."""
    for folder in _children(layout.packages):
        with suppress(OSError):
            if key.encode() in read_regular(folder / MANIFEST_NAME):
                yield folder.name


def files_by_digest(layout: Layout) -> dict[str, list[Path]]:
    """List the packages' files by the SHA-256 that their manifests promise; none is read."""
    files: dict[str, list[Path]] = {}
    for folder in _children(layout.packages):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            for file in parse(read_regular(folder / MANIFEST_NAME))["files"]:
                if not misplaced(folder, [file]):
                    digest = file["digest"].removeprefix("sha256:")
                    files.setdefault(digest, []).append(folder / file["path"])
    return files


def write_graph_index(folder: Path) -> None:
    """Note size and digest of every file of a traced graph, in the graph's folder."""
    index = {
        name: [(folder / name).stat().st_size, sha256_file(folder / name)]
        for name in sorted(walk(folder))
        if name != _INDEX_NAME
    }
    write_durably(folder / _INDEX_NAME, json.dumps(index, indent=1).encode())


def graph_problems(folder: Path, progress: Progress | None = None) -> list[str]:
    """Return what is wrong with a traced graph, which is small enough to read whole each time."""
    try:
        index = json.loads(read_regular(folder / _INDEX_NAME))
        return [
            f"{name!r} is not what was stored"
            for name, (size, digest) in index.items()
            if (folder / name).stat().st_size != size
            or sha256_file(folder / name, progress) != digest
        ]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return [f"graph {folder.name!r} cannot be read: {error}"]


def _children(folder: Path, *, folders: bool = True) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() == folders)


def _size(folder: Path) -> int:
    total = 0
    for name in walk(folder) if folder.is_dir() else [""]:
        with suppress(OSError):
            total += (folder / name).lstat().st_size
    return total
