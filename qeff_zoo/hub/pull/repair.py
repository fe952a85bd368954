# SPDX-License-Identifier: Apache-2.0
"""Damaged packages of the store -> whole ones, with only what is damaged fetched again.

In: names of packages. Out: what was wrong with each, and what it took. Intact files are kept, and the whole package
takes the damaged one's place in one step.
"""

import hashlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from qeff_zoo.disk.staging import remove
from qeff_zoo.errors import PackageError, RemoteError, TrustError, ZooError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import model_of
from qeff_zoo.hub.naming import is_at
from qeff_zoo.hub.pull.fetch import (
    Assembler,
    Description,
    download_description,
    origin_of,
    read_manifest,
)
from qeff_zoo.hub.remotes import open_remote, remotes_for
from qeff_zoo.hub.remotes.folder import FolderRemote
from qeff_zoo.hub.remotes.protocol import Remote, Snapshot
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BuiltHere, Origin, Provenance
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

_BUILD_KEY = re.compile("qz1-[0-9a-f]{64}")
_Place = tuple[Snapshot, Origin]


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """What became of a package.

    Args:
        build_key: Build key of the package.
        path: Folder of the package.
        problems: Detected damage; empty for an intact package.
        bytes_transferred: Fetched bytes.
        error: Why it is still damaged.
    """

    build_key: str
    path: Path
    problems: list[str] = field(default_factory=list)
    bytes_transferred: int = 0
    error: str | None = None


def repair(
    references: list[str], store: Store | None = None, reporter: Reporter | None = None
) -> list[Repaired]:
    """Read every byte of packages, and make them whole again.

    Args:
        references: Folders, build keys or beginnings of them, or model names of packages of the store; none for all.
        store: Store of the packages; None for the one that `QEFF_HOME` names.
        reporter: Shows progress.

    Raises:
        PackageError: The store has no such package.
    """
    store = store or Store()
    mender = Repairer(store, reporter or Silent())
    return [mender.mend(folder) for folder in _chosen(store, references)]


def _chosen(store: Store, references: list[str]) -> list[Path]:
    packages = [entry.path for entry in store.entries() if entry.kind == "package"]
    folders = [path for path in packages if _BUILD_KEY.fullmatch(path.name)]
    chosen = dict.fromkeys(folders if not references else ())
    for reference in references:
        fits = [path for path in folders if is_at(reference, path)]
        if not fits:
            raise PackageError(
                f"No package {reference!r} in the store {str(store.root)!r}; expected a folder, a build key or a model "
                "name that `qeff-zoo cache ls` lists. Check it; a damaged copy elsewhere is made anew by `pull`."
            )
        chosen |= dict.fromkeys(fits)
    return list(chosen)


@dataclass(frozen=True)
class Repairer:
    """Makes packages of a store whole.

    Args:
        store: Store of the packages.
        reporter: Shows progress.
        place: The only remote that is read; None for all known remotes.
    """

    store: Store
    reporter: Reporter
    place: _Place | None = None

    def mend(self, folder: Path) -> Repaired:
        """Find what is wrong with a package, and put it right.

        Raises:
            ZooError: The package's only source cannot serve it; with other sources `Repaired.error` has the reason.
        """
        outcome = Repaired(build_key=folder.name, path=folder)
        origin = self.store.origin(folder.name)
        described = _described_here(folder, origin)
        if described is None:
            outcome = replace(outcome, problems=[f"{MANIFEST_NAME} is not what it was"])
        else:
            package = Package(folder, described.manifest)
            with Stopwatch(self.reporter).stage("verify", package.size) as advance:
                outcome = replace(outcome, problems=package.verify(advance))
            unlisted = package.unlisted()
            if len(outcome.problems) == len(unlisted):  # nothing of the package itself is damaged
                for name in unlisted:
                    remove(folder / name)
                return outcome
        try:
            received = self._rebuild(origin, described)
        except ZooError as error:
            if self.place is not None:
                raise
            return replace(outcome, error=str(error))
        return replace(outcome, bytes_transferred=received)

    def _rebuild(self, origin: Provenance | None, described: Description | None) -> int:
        """Put a package together again, from the first remote that has what is missing; give the bytes received."""
        failure: RemoteError | None = None
        assembler = Assembler(self.store, self.reporter)
        candidates = _candidates(origin, described)
        if self.place is not None:
            candidates = iter([lambda: self.place])
            if described is not None and _digest(described) != self.place[1].manifest:
                described = None  # the remote has another package of this key
        built_here = described is not None and isinstance(origin, BuiltHere)
        for find in candidates:
            try:
                if (source := find()) is None:
                    continue
                received, snapshot, there = 0, *source
                if described is None:
                    described = download_description(snapshot, there)
                    received = len(described.content) + len(described.signature or b"")
                _, more = assembler.assemble(
                    snapshot, described, there, adopt=False, built_here=built_here
                )
            except RemoteError as error:
                failure = failure or error  # of where it came from
            else:
                return received + more
        raise failure or RemoteError(
            "No remote is known that has this package; expected the one that it came from, or a configured one with "
            "the same manifest. Set QEFF_ZOO_STORES to where it was published, or remove it and build it again."
        )


def _digest(described: Description) -> str:
    return hashlib.sha256(described.content).hexdigest()


def _described_here(folder: Path, origin: Provenance | None) -> Description | None:
    """Read a package's own manifest and signature; None if they are not, or cannot be, what they were."""
    try:
        content, signature = trust.read_signed(folder)
        manifest = read_manifest(content, str(folder))
        if not isinstance(origin, BuiltHere):
            trust.check(content, signature, trust.policy_for(origin))
    except (OSError, RemoteError, TrustError):
        return None
    if manifest["build_key"] != folder.name:
        return None
    if isinstance(origin, Origin) and (
        origin.manifest != hashlib.sha256(content).hexdigest()
        or (origin.signed and signature is None)
    ):
        return None
    return Description(content=content, manifest=manifest, signature=signature, warnings=())


def _candidates(
    origin: Provenance | None, described: Description | None
) -> Iterator[Callable[[], _Place | None]]:
    """List where a package may be: where it came from, then wherever the same manifest is."""
    model_id, digest = "", ""
    if isinstance(origin, Origin):
        yield partial(_at, open_remote(origin.url), origin)
        digest = origin.manifest
    if described is not None:
        model_id = model_of(described.manifest)
        digest = _digest(described)
    if digest:
        for remote in remotes_for(model_id):
            yield partial(_with_manifest, remote, digest, model_id or None)


def _at(remote: Remote, origin: Origin) -> _Place | None:
    if snapshot := remote.snapshot():
        return snapshot, origin
    if isinstance(remote, FolderRemote) and not remote.folder.is_dir():
        raise RemoteError(
            f"Cannot repair from {remote.path!r}, where the package came from: it is no folder; expected one with "
            f"packages. Of a bundle, run `qeff-zoo bundle import {shlex.quote(remote.path)}` again, which mends it."
        )
    return None


def _with_manifest(remote: Remote, digest: str, model: str | None) -> _Place | None:
    snapshot = remote.snapshot()
    if snapshot is None:
        return None
    indexed = snapshot.index.find(lambda entry: entry.manifest == digest, model)
    return (snapshot, origin_of(snapshot, indexed[0])) if indexed else None
