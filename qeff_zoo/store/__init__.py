# SPDX-License-Identifier: Apache-2.0
"""The content store: finished packages and graphs by key, and the staging they come from.

In: staged folders. Out: packages that are complete whenever they have their name. Nothing relies on
locks: each process works in a folder of its own, and finishing is one rename.

    packages/<build_key>/   complete packages           staging/   under construction, with owners
    graphs/<key>/           traced graphs               failed/    evidence of failed validations
    used/                   when each was last used     digests/   of checkpoint files
    sources/                where local checkpoints lie
    companions/             small files of packages, configurations of GGUF files, and cut checkpoints
    partials/               unfinished downloads
    remotes/                last known indexes of remotes
    outcomes/               last outcome of the builds and validations of each key
"""

import errno
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from qeff_zoo.disk.digests import DigestCache, Progress
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.room import free_bytes, nearest_existing
from qeff_zoo.disk.staging import publish, staged, staging_folders, sweep, write_durably
from qeff_zoo.errors import PackageError, StoreError
from qeff_zoo.package import Package
from qeff_zoo.package.files import walk
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.settings import expanded
from qeff_zoo.store.housekeeping import NO_ROOM, Entry, Layout
from qeff_zoo.store.origins import BUILT_HERE, BuiltHere, Provenance, read_origin, write_origin
from qeff_zoo.store.partials import Partials

from . import housekeeping

_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{7,99}")
_READ = 0o444


def default_root() -> Path:
    """Find where the store is now: `QEFF_HOME`, else `qeff_cache` in the user's cache folder."""
    if home := os.environ.get("QEFF_HOME"):
        return expanded(home, "QEFF_HOME")
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
    return base / "qeff_cache"


class Store:
    """Packages, graphs and digests below one folder, shared by any number of processes.

    Args:
        root: Folder of the store, created by the first write. None for `default_root()`.

    Example:
        >>> store = Store()
        >>> with store.stage("build") as folder:  # doctest: +SKIP
        ...     package = write_manifest(folder, manifest, {})
        ...     package = store.promote(folder, package.build_key)
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(os.path.abspath(root or default_root()))  # noqa: PTH100 -- links stay
        self._layout = Layout(self.root)

    def lookup(self, build_key: str) -> Package | None:
        """Find a complete package, and note that it was used.

        Args:
            build_key: Build key of the plan.

        Returns:
            The package, or None if there is none or only a damaged one.
        """
        try:
            package = Package.open(self._layout.packages / _checked(build_key))
        except PackageError:
            return None
        if package.build_key != build_key:
            return None
        self._layout.touch(build_key)
        return package

    @contextmanager
    def stage(self, prefix: str) -> Iterator[Path]:
        """Yield a private folder to build in, removed at the end unless it was promoted.

        What killed processes left in the staging area is removed first.

        Args:
            prefix: Begins its name: letters, digits, `-` and `_`.

        Raises:
            StoreError: The store cannot be written.
        """
        area = self._layout.staging
        with ExitStack() as stack:
            try:
                sweep(staging_folders(area))
                folder = stack.enter_context(staged(area, prefix))
            except OSError as error:
                raise refused("make a staging folder in", area, error) from error
            try:
                yield folder
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise refused("write to", folder, error) from error

    def promote(
        self,
        folder: Path,
        build_key: str,
        *,
        origin: Provenance = BUILT_HERE,
        adopt: bool = True,
    ) -> Package:
        """Make a staged package the store's package of its key, in one step.

        If another process was first, its package is returned and ours removed. A damaged package,
        one validated to a lower level, or one of changed sources where ours is not, is replaced;
        by one that was built here also any that was not. Its files become read-only.

        Args:
            folder: Folder from `stage`, completed by `write_manifest`.
            build_key: Build key of the plan.
            origin: Origin of the package.
            adopt: False to replace in any case what the store has, which may be damaged unseen.

        Raises:
            PackageError: The folder is not a complete package.
            StoreError: The store cannot be written.
        """
        package = Package.open(folder)
        if package.build_key != build_key:
            raise ValueError(f"{str(folder)!r} has key {package.build_key}, not {build_key}.")
        winners: list[Package] = []

        def is_as_good() -> bool:
            there = self.lookup(build_key) if adopt else None
            as_near = not isinstance(origin, BuiltHere) or self.is_built_here(build_key)
            if there and as_near and there.standing >= package.standing:
                winners.append(there)
            return bool(winners)

        final = self._layout.packages / _checked(build_key)
        try:
            write_origin(folder, origin)
            _protect(folder)
            if not publish(folder, final, self._layout.staging, is_as_good):
                return winners[-1]
        except OSError as error:
            raise refused("promote a package to", final, error) from error
        self._layout.touch(build_key)
        return replace(package, path=final)

    def failed(self, folder: Path, build_key: str) -> Path:
        """Keep a staged folder as evidence of a failure; `lookup` never returns it.

        Args:
            folder: Folder from `stage`, in any state.
            build_key: Build key of the plan; evidence of an earlier failure of this key is replaced.

        Returns:
            Where the evidence is, until `gc`.
        """
        final = self._layout.failed / _checked(build_key)
        try:
            publish(folder, final, self._layout.staging, lambda: False)
        except OSError as error:
            raise refused("keep the evidence in", final, error) from error
        return final

    def graph(self, key: str) -> Path | None:
        """Find a traced graph, check its bytes, and note that it was used.

        Args:
            key: Names what the graph was traced from.
        """
        folder = self._layout.graphs / _checked(key)
        if housekeeping.graph_problems(folder):
            return None
        self._layout.touch(key)
        return folder

    def promote_graph(self, folder: Path, key: str) -> Path:
        """Make a staged folder the store's graph of its key; another's intact one is adopted.

        Args:
            folder: Folder from `stage`.
            key: See `graph`.

        Raises:
            StoreError: The store cannot be written.
        """
        final = self._layout.graphs / _checked(key)
        try:
            housekeeping.write_graph_index(folder)
            publish(folder, final, self._layout.staging, lambda: self.graph(key) is not None)
        except OSError as error:
            raise refused("promote a graph to", final, error) from error
        self._layout.touch(key)
        return final

    def companions(self, key: str) -> Path | None:
        """Find a folder of a checkpoint's small files that were made here.

        Args:
            key: Digest of their sources.
        """
        folder = self._layout.companions / _checked(key)
        if not folder.is_dir():
            return None
        self._layout.touch(key)
        return folder

    def promote_companions(self, folder: Path, key: str) -> Path:
        """Make a staged folder the store's companions of its key; another's is adopted.

        Args:
            folder: Folder from `stage`.
            key: See `companions`.

        Raises:
            StoreError: The store cannot be written.
        """
        final = self._layout.companions / _checked(key)
        try:
            publish(folder, final, self._layout.staging, lambda: self.companions(key) is not None)
        except OSError as error:
            raise refused("keep a configuration in", final, error) from error
        return final

    def remember_source(self, build_key: str, place: Path, part: int | str = 0) -> None:
        """Note where a package's checkpoint lies on this machine: a folder, or a GGUF file; packages hold no paths.

        Args:
            build_key: Build key of the package.
            place: Path of the checkpoint, or of an adapter or draft that was built in.
            part: 0 for the checkpoint, 1 for the first adapter that was merged into it, …; the role of heads.
        """
        # The Hub's cache links a file to another name.
        place = place.parent.resolve() / place.name if place.is_file() else place.resolve()
        if self.source(build_key, part) == place:
            return
        note = self._source_note(build_key, part)
        with suppress(OSError):  # a store that can only be read still serves packages
            note.parent.mkdir(parents=True, exist_ok=True)
            write_durably(note, os.fsencode(place))

    def _source_note(self, build_key: str, part: int | str) -> Path:
        return self._layout.sources / (_checked(build_key) + f".{part}" * bool(part))

    def source(self, build_key: str, part: int | str = 0) -> Path | None:
        """Find where a package's checkpoint lay when it was built here, if that folder or file still exists.

        Args:
            build_key: Build key of the package.
            part: See `remember_source`.
        """
        try:
            path = Path(os.fsdecode(read_regular(self._source_note(build_key, part))))
        except FileNotFoundError:
            return None
        return path if path.exists() else None

    def note_outcome(self, build_key: str, outcome: Mapping[str, Any]) -> None:
        """Record the last outcome of a build or a validation; fields of the earlier one stay.

        Args:
            build_key: Build key of the package, which need not exist.
            outcome: JSON values.
        """
        note = self._layout.outcomes / _checked(build_key)
        content = json.dumps({**self.outcome(build_key), **outcome}, sort_keys=True)
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            write_durably(note, content.encode())
        except OSError as error:
            raise refused("note an outcome in", note, error) from error

    def outcome(self, build_key: str) -> dict[str, Any]:
        """Return the last outcome of the builds and validations of a key; empty without one."""
        try:
            outcome = json.loads(read_regular(self._layout.outcomes / _checked(build_key)))
        except (OSError, ValueError, RecursionError):
            return {}
        return outcome if isinstance(outcome, dict) else {}

    def origin(self, build_key: str) -> Provenance | None:
        """Return the origin of a package; None if it is unknown."""
        return read_origin(self._layout.packages / _checked(build_key))

    def folder(self, build_key: str) -> Path:
        """Return where a package of that key lies, if the store has one."""
        return self._layout.packages / _checked(build_key)

    def is_built_here(self, build_key: str) -> bool:
        """Whether a package was surely built here."""
        return isinstance(self.origin(build_key), BuiltHere)

    @property
    def partials(self) -> Partials:
        """Downloads under way."""
        return Partials(self._layout.partials)

    def with_manifest(self, digest: str) -> Package | None:
        """Find a complete package by the SHA-256 of its manifest.json, and note that it was used."""
        key = housekeeping.key_of_manifest(self._layout, digest)
        return self.lookup(key) if key else None

    def program(self, key: str) -> tuple[Package, CompiledProgram] | None:
        """Find a compiled program of a package that was built here, and note that the package was used.

        A pulled package only claims the source of its program, and changed sources may have been lowered otherwise.

        Args:
            key: See `qeff_zoo.package.identity.program_key`.
        """
        for build_key in housekeeping.keys_of_program(self._layout, key):
            if not self.is_built_here(build_key):
                continue
            package = self.lookup(build_key)
            for program in package.programs if package and not package.dirty else ():
                if package and program.key == key and not package.altered(program.path):
                    return package, program
        return None

    def files_by_digest(self) -> Mapping[str, list[Path]]:
        """List the files of all packages, damaged ones too, by the SHA-256 that they ought to have."""
        return housekeeping.files_by_digest(self._layout)

    def file_digest(self, path: Path, progress: Progress | None = None) -> str:
        """Return a source file's SHA-256, remembered from run to run.

        Args:
            path: The file; a link is followed.
            progress: Callback for the bytes done; a remembered file counts at once.
        """
        return DigestCache(self._layout.digests).digest(path, progress)

    @staticmethod
    def require_space(path: Path, size: int, what: str) -> None:
        """Refuse work that would fill the disk, before it begins.

        Args:
            path: Destination of the bytes; need not exist yet.
            size: Number of bytes.
            what: Description for the message: "the package".

        Raises:
            StoreError: Fewer bytes than that are free.
        """
        free = free_bytes(path)
        if free < size:
            lacking = f"{size - free:,} bytes"
            advice = (
                f"Free {lacking} there with `qeff-zoo cache gc`, or set QEFF_HOME, or --output, to a larger disk."
                if _shares_disk(path)
                else f"Free {lacking} on that disk, which is not the store's, or give a folder on a larger one."
            )
            raise StoreError(
                f"Cannot write {what} to {str(path)!r}: it takes {size:,} bytes and {free:,} are "
                f"free; expected room for all of it. {advice}"
            )

    def entries(self) -> list[Entry]:
        """List everything the store holds, by kind and key."""
        return housekeeping.entries(self._layout)

    def packages(self) -> Iterator[Package]:
        """Yield the complete packages, sorted by key."""
        for entry in self.entries():
            if (entry.kind, entry.state) == ("package", "complete"):
                yield Package.open(entry.path)

    def gc(
        self,
        *,
        older_than: timedelta | None = None,
        keep: Collection[str] = (),
        dry_run: bool = False,
    ) -> list[Entry]:
        """Remove unneeded entries: abandoned staging, failed builds, and long unused packages.

        What a live process builds, maps or has open stays.

        Args:
            older_than: Also remove packages and graphs that were unused for that long.
            keep: Keys to leave in any case.
            dry_run: Whether to list the packages without removing them.

        Returns:
            What was removed.
        """
        max_idle = older_than.total_seconds() if older_than is not None else None
        garbage = housekeeping.unneeded(self._layout, max_idle, keep)
        if dry_run:
            return garbage
        self._discard(garbage)
        if max_idle is not None:
            housekeeping.forget(self._layout, max_idle)
        return garbage

    def remove(self, packages: Collection[Entry], *, dry_run: bool = False) -> int:
        """Remove packages; none, if a live process uses one of them.

        Args:
            packages: Entries from `entries`.
            dry_run: Whether to compute the size without freeing it.

        Returns:
            The bytes that it frees: a file that other packages share stays.

        Raises:
            StoreError: A live process uses one of them, or the store cannot be written.
        """
        busy = housekeeping.in_use(self._layout)
        if used := [entry.path for entry in packages if entry.path.resolve() in busy]:
            raise StoreError(
                f"Cannot remove {str(used[0])!r}: a process runs it, or reads it. Expected a package without users. "
                "End that process first."
            )
        size = housekeeping.freed([entry.path for entry in packages])
        self._discard(() if dry_run else packages)
        return size

    def _discard(self, entries: Iterable[Entry]) -> None:
        refusals = list[StoreError]()
        for entry in entries:
            try:
                housekeeping.discard_entry(self._layout, entry)
                if os.path.lexists(entry.path):  # what is removed at leisure meets no error
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                refusals.append(refused("remove", entry.path, error))
                refusals[-1].__cause__ = error
        if refusals:  # of those of another user, say
            raise refusals[0]

    def verify(self, progress: Progress | None = None) -> dict[str, list[str]]:
        """Read every byte of every package and graph.

        Args:
            progress: Callback for the bytes read.

        Returns:
            Problems by key; an empty list for what is intact.
        """
        return housekeeping.verify(self._layout, progress)


def _protect(folder: Path) -> None:
    """Make a package's files read-only: packages share files, so who writes to one would change others."""
    for name in walk(folder):
        path = folder / name
        with suppress(OSError):  # of another user, or on a file system without permissions
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & _READ)


def _checked(key: str) -> str:
    if _KEY.fullmatch(key):
        return key
    raise ValueError(f"Store key {key!r} is not a folder name; expected {_KEY.pattern}.")


def refused(action: str, path: Path, error: OSError) -> StoreError:
    """Convert a refusal of the disk to our error."""
    elsewhere = "set QEFF_HOME" if path.is_relative_to(default_root()) else "give another folder"
    return StoreError(
        f"Cannot {action} {str(path)!r}: {error.strerror or error}; expected a folder that this "
        f"user may write, with room. Check its permissions and space, or {elsewhere}."
    )


def _shares_disk(path: Path) -> bool:
    """Whether a path is, or will be, on the disk of the store, where packages can be removed."""
    paths = (nearest_existing(path), nearest_existing(default_root()))
    return len({one.stat().st_dev for one in paths}) == 1
