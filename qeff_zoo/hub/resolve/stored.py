# SPDX-License-Identifier: Apache-2.0
"""Packages of a model in the store: builds of this machine, and packages of a remote."""

import json
from collections.abc import Callable, Iterator

from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import PackageError, TrustError
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.resolve.choose import Candidate
from qeff_zoo.hub.trust.usage import known_notice, require_trusted
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, Manifest, source_in
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BuiltHere, Origin


def in_store(
    store: Store, fits: Callable[[Manifest], bool], remote: str | None
) -> Iterator[Candidate]:
    """List the complete packages in the store that fit: builds of this machine, and packages of the remote.

    Args:
        store: Local store.
        fits: Predicate: whether a manifest is of the model.
        remote: URL of the one that has the model; None if none has it, and then packages of any count.
    """
    for path in sorted((store.root / "packages").glob(f"*/{MANIFEST_NAME}")):
        try:
            content = read_regular(path)
            if not fits(json.loads(content)):
                continue
            package = Package.open(path.parent)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            PackageError,
        ):
            continue  # damaged, or going away: `cache verify` reports it
        origin = store.origin(package.build_key)
        if remote and not isinstance(origin, BuiltHere) and not _is_from(origin, remote):
            continue
        signed = (path.parent / SIGNATURE_NAME).exists()
        entry = Entry.of(package.manifest, content, signed=signed)
        yield Candidate(
            entry=entry,
            here=package.path,
            distrusted=_distrust(package, store),
            notice=known_notice(package, store),
        )


def _is_from(origin: Origin | None, remote: str) -> bool:
    """Whether a package was pulled from a remote, at any commit."""
    return origin is not None and unpinned(origin.url) == unpinned(remote)


def _distrust(package: Package, store: Store) -> str:
    try:
        require_trusted(package, store)
    except TrustError as error:
        return str(error)
    return ""


def is_of_model(model: str) -> Callable[[Manifest], bool]:
    """Return a function that tests whether a package is of a model: by source, or for a folder by name."""
    return lambda manifest: model == source_in(manifest).get("model_id", manifest["name"])


def is_of_folder(folder: str, store: Store, place: Place) -> Callable[[Manifest], bool]:
    """As `is_of_model`, of a folder: by content, since a folder's content changes and its name does not."""
    checkpoint = open_checkpoint(folder, **place)
    content = {
        "weights": checkpoint.weights_digest(store.file_digest),
        "companions": checkpoint.companions_digest(),
    }
    return lambda manifest: content.items() <= source_in(manifest).items()
