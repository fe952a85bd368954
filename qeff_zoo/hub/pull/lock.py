# SPDX-License-Identifier: Apache-2.0
"""Packages pinned in a file, so that what was chosen once is what everybody gets.

In: resolutions, or a lock file that anyone may have written. Out: a lock file; or exactly the packages that it names,
wherever the index has moved on to. What is pinned is the digest of a manifest, which has those of all files.

    {"schema": "qeff-lock/1",
     "packages": [{"model": "org/model", "asked": {"ctx_len": 4096}, "url": "hf://org/repo@<commit>",
                   "path": "packages/…", "manifest": "<SHA-256>", "signed": true}]}
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import open_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import RemoteError, ResolutionError, StoreError
from qeff_zoo.hub import resolve
from qeff_zoo.hub.entries import model_of
from qeff_zoo.hub.naming import notice_text
from qeff_zoo.hub.pull.fetch import origin_of
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.trust.usage import notice_of
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import parse
from qeff_zoo.settings import offline
from qeff_zoo.store import Store
from qeff_zoo.store.origins import Origin, Provenance

from . import Pulled, Puller, listed_entry

LOCK_NAME = "qeff-zoo.lock"
SCHEMA_ID = "qeff-lock/1"
_LIMIT = 16 << 20
_MEMBERS = {"model": str, "asked": dict, "url": str, "path": str, "manifest": str, "signed": bool}


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One package that is pinned.

    Args:
        model: Model as the user requested it.
        options: Requested options.
        origin: Origin of the package.
        warnings: Notices against it and its index; not in the file.
    """

    model: str
    options: Mapping[str, Any]
    origin: Origin
    warnings: tuple[str, ...] = field(default=(), compare=False)


def write_lock(path: Path, packages: Sequence[Locked]) -> None:
    """Write a lock file, the same packages always as the same bytes.

    Args:
        path: The file; one that is there is replaced.
        packages: Packages in their order in the file.

    Raises:
        StoreError: The file cannot be written.
    """
    entries = [
        {"model": each.model, "asked": dict(each.options), **asdict(each.origin)}
        for each in packages
    ]
    content = {"schema": SCHEMA_ID, "packages": entries}
    try:
        write_durably(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise StoreError(
            f"Cannot write the lock {str(path)!r}: {error.strerror or error}; expected a folder that this user may "
            "write. Give another file."
        ) from error


def read_lock(path: Path) -> list[Locked]:
    """Read a lock file.

    Raises:
        ResolutionError: The lock file is missing or invalid.
    """
    try:
        with open_regular(path) as file:
            content = parse(file.read(_LIMIT))
        return _packages(content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ResolutionError(
            f"Cannot read the lock {str(path)!r}: {error}. Expected a file that `qeff-zoo lock` wrote. Write it again."
        ) from error


def _packages(content: Mapping[str, Any]) -> list[Locked]:
    if content.keys() != {"schema", "packages"} or content["schema"] != SCHEMA_ID:
        raise ValueError(f"it is not {SCHEMA_ID!r}")
    return [_locked(entry) for entry in content["packages"]]


def _locked(entry: Any) -> Locked:
    if {name: type(value) for name, value in entry.items()} != _MEMBERS:
        raise ValueError(f"an entry is {entry!r}")
    if not re.fullmatch("[0-9a-f]{64}", entry["manifest"]) or unsafe_path(entry["path"]):
        raise ValueError(f"an entry has path {entry['path']!r} and manifest {entry['manifest']!r}")
    pinned = {name: entry[name] for name in ("url", "path", "manifest", "signed")}
    return Locked(model=entry["model"], options=entry["asked"], origin=Origin(**pinned))


def lock(
    models: Sequence[str],
    requirements: Mapping[str, Any] | None = None,
    *,
    revision: str | None = None,
    remote: str | None = None,
    store: Store | None = None,
) -> list[Locked]:
    """Choose a package for each model, and pin it.

    Args:
        models: Each as for `qeff_zoo.hub.pull.pull`.
        requirements: Requirements of each package.
        revision: Revision of the checkpoint.
        remote: URL or `org/repo` of the only remote that is read.
        store: Local store; None for the one that `QEFF_HOME` names.

    Raises:
        ResolutionError: There is no such package of a model, or it is published nowhere.
    """
    store = store or Store()
    requirements = requirements or {}
    options = {name: value for name, value in requirements.items() if value is not None}
    options |= {"revision": revision} if revision else {}

    def pinned(model: str) -> Locked:
        resolution = resolve.resolve(
            model, requirements, revision=revision, remote=remote, store=store
        )
        index = resolution.snapshot.index.warnings if resolution.snapshot else ()
        known = (*resolution.warnings, *index)
        return Locked(
            model=model, options=options, origin=_origin(resolution, model, store), warnings=known
        )

    return [pinned(model) for model in models]


def _origin(resolution: resolve.Resolution, model: str, store: Store) -> Origin:
    """Return an origin from which the chosen package can be pulled."""
    here, listed = resolve.require(resolution).here, listed_entry(resolution)
    if resolution.snapshot is not None and listed is not None:
        origin: Provenance | None = origin_of(resolution.snapshot, listed)
    else:
        origin = store.origin(here.name) if here else None
    if not isinstance(origin, Origin):
        raise ResolutionError(
            f"Cannot lock {model!r}: its package {str(here)!r} was built here and is published nowhere; expected one "
            "that others can pull. Publish it with `qeff-zoo publish`."
        )
    return origin


def pull_locked(locked: Locked, puller: Puller) -> Pulled:
    """Bring a pinned package here: that one, wherever its remote's index has moved on to.

    Args:
        locked: Lock file from `read_lock`.
        puller: Store and options of the download.

    Raises:
        RemoteError: The package cannot be fetched, or its manifest changed.
        TrustError: The trust policy refuses it.
        StoreError: There is no room for it.
    """
    origin = locked.origin
    if held := puller.held(origin):
        return held.warned(_known(origin, held.package))
    snapshot = open_remote(origin.url).snapshot(offline=offline())
    if snapshot is None:
        raise RemoteError(
            f"{origin.url!r} has no index; expected the remote that {locked.model!r} is locked to. Check it, or write "
            "the lock again."
        )
    pulled = puller.pull(snapshot, origin)
    return pulled.warned(_known(origin, pulled.package))


def _known(origin: Origin, package: Package) -> tuple[str, ...]:
    """Return the current notices against the package; the index of the pinned commit is as old as the lock.

    A remote that does not respond is ignored: a package of the store is used without a network.
    """
    model = model_of(package.manifest)
    with suppress(RemoteError):
        snapshot = open_remote(unpinned(origin.url)).snapshot(offline=offline())
        if snapshot and (notice := snapshot.index.leaf_of(model).notices.get(origin.path)):
            return (f"It is {notice_text(notice)}.",)
    return tuple(f"It is {notice_text(notice)}." for notice in [notice_of(origin, model)] if notice)


def chosen(locked: Sequence[Locked], models: Sequence[str]) -> list[Locked]:
    """Pick the packages of some models.

    Args:
        locked: Lock file from `read_lock`.
        models: Requested models as the lock records them; empty for all.

    Raises:
        ResolutionError: The lock has no package of a model.
    """
    known = {each.model for each in locked}
    if unknown := [model for model in models if model not in known]:
        raise ResolutionError(
            f"The lock has no package of {unknown[0]!r}; expected one of {', '.join(sorted(known))}. Add it with "
            "`qeff-zoo lock`."
        )
    return [each for each in locked if not models or each.model in models]
