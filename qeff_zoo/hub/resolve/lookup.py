# SPDX-License-Identifier: Apache-2.0
"""Where packages of a model may come from: the store, and the first remote that has any.

In: what a user called the model. Out: `Found`: the packages, not judged yet, and what was asked on the way.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qeff_zoo.checkpoint import open_checkpoint
from qeff_zoo.errors import PackageError, RemoteError, ResolutionError, TrustError
from qeff_zoo.hub import trust
from qeff_zoo.hub.index import Entry, Notice
from qeff_zoo.hub.remotes import (
    configured_remotes,
    is_optional,
    is_repository,
    is_url,
    open_remote,
)
from qeff_zoo.hub.remotes.protocol import Remote, Snapshot
from qeff_zoo.hub.resolve.choose import Candidate
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, VALIDATED, Manifest, source_in
from qeff_zoo.settings import offline
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BuiltHere, Origin

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What there is of a model.

    Args:
        model: Model id that the packages have.
        candidates: The packages.
        checkpoint: What could be built: a model id or a folder; None if a remote that has nothing was named.
        snapshot: Of the remote that has packages of it.
        notices: Of that remote.
        notes: What was asked and had nothing, or did not answer.
        unanswered: Why a remote that may have the model could not be asked.
    """

    model: str
    candidates: tuple[Candidate, ...] = ()
    checkpoint: str | None = None
    snapshot: Snapshot | None = None
    notices: Mapping[str, Notice] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """What the remotes answered: entries of one model, none if no remote had it. `folder` is that of a local one."""

    model: str
    folder: str | None = None
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None


def look_up(reference: str, store: Store) -> Found:
    """Look a model up in the store and the remotes.

    Args:
        reference: Model id, repository of packages, URL of a remote, or folder of a checkpoint.
        store: Of this machine.

    Raises:
        ResolutionError: It names no model, or several.
        CheckpointError: It is a folder, and not one of a checkpoint.
        TrustError: A remote has an older index than it had.
    """
    if not reference.strip():
        raise ResolutionError(
            "No model is named. Expected a model id (org/name), a Hub repository of packages, or the URL of a remote."
        )
    claim = _claim(reference)
    remote = claim.snapshot.url if claim.snapshot else None
    unsigned = trust.refusal_of_unsigned(remote) if remote else ""
    there = (
        Candidate(entry=entry, remote=remote, distrusted="" if entry.signed else unsigned)
        for entry in claim.entries
    )
    fits = _is_of_folder(claim.folder, store) if claim.folder else _is_of_model(claim.model)
    candidates = _merged(_in_store(store, fits, remote), there)
    if is_url(reference) or claim.model != reference:  # a remote was named: what it has alone
        candidates = (candidate for candidate in candidates if candidate.remote or claim.folder)
    return Found(
        model=claim.model,
        candidates=tuple(candidates),
        checkpoint=claim.folder or (None if is_url(claim.model) else claim.model),
        snapshot=claim.snapshot,
        notices=claim.snapshot.index.notices if claim.snapshot else {},
        notes=claim.notes,
        unanswered=claim.unanswered,
    )


def _claim(reference: str) -> _Claim:
    if is_url(reference):
        claim = _ask([], open_remote(reference), reference)
        if claim.unanswered:
            raise claim.unanswered
        return claim
    if Path(reference).exists():  # nobody else's folder of that name is meant
        return _Claim(model=Path(reference).resolve().name, folder=reference)
    implied = open_remote(f"hf://{reference}") if is_repository(reference) else None
    return _ask(configured_remotes(reference), implied, reference)


def _ask(configured: Iterable[Remote], named: Remote | None, reference: str) -> _Claim:
    """Ask remotes in order until one has the model; then the one that was named itself, whatever model it has."""
    notes: list[str] = []
    for remote in configured:
        try:
            snapshot = remote.snapshot(offline=offline())
        except RemoteError as error:
            # The next may have another package of this name, which is not for us to take instead.
            return _Claim(model=reference, notes=(*notes, str(error)), unanswered=error)
        if snapshot is None and not is_optional(remote.url):
            return _Claim(model=reference, notes=tuple(notes), unanswered=_without_index(remote))
        if snapshot and (entries := snapshot.index.of_model(reference)):
            return _Claim(model=reference, entries=entries, snapshot=snapshot, notes=tuple(notes))
        notes.append(f"{remote.url} has {'no package of it' if snapshot else 'no index'}.")
    if named is None:
        return _Claim(model=reference, notes=tuple(notes))
    try:
        snapshot = named.snapshot(offline=offline())
    except RemoteError as error:
        # A model on the Hub need not have packages, so this alone is no reason to stop.
        unanswered = error if is_url(reference) else None
        return _Claim(model=reference, notes=(*notes, str(error)), unanswered=unanswered)
    if snapshot is None:
        return _Claim(model=reference, notes=(*notes, f"{named.url} has no index."))
    model = _only_model(snapshot, reference)
    entries = snapshot.index.of_model(model)
    return _Claim(model=model, entries=entries, snapshot=snapshot, notes=tuple(notes))


def _without_index(remote: Remote) -> RemoteError:
    """Say that a remote which should have packages shows none, as a private one does to those who are not signed in."""
    return RemoteError(
        f"{remote.url} has no index; expected one, as the settings name it. Check its URL, sign in with `hf auth "
        "login` or HF_TOKEN if it is private, or mark it as optional: opt+URL."
    )


def _only_model(snapshot: Snapshot, reference: str) -> str:
    models = snapshot.index.models
    if reference in models or not models:
        return reference
    if len(models) == 1:
        return models[0]
    some = ", ".join(models[:5]) + (", …" if len(models) > 5 else "")
    raise ResolutionError(
        f"{reference!r} has packages of {len(models)} models: {some}. Expected one. Name the model, and the remote in "
        "QEFF_ZOO_STORES."
    )


def _is_of_model(model: str) -> Callable[[Manifest], bool]:
    """Tell packages of a model by what they were made from; those of a folder by the name that they have."""
    return lambda manifest: model == source_in(manifest).get("model_id", manifest["name"])


def _is_of_folder(folder: str, store: Store) -> Callable[[Manifest], bool]:
    """Tell packages of a checkpoint by its content: what is in a folder changes, and its name does not."""
    checkpoint = open_checkpoint(folder)
    content = {
        "weights": checkpoint.weights_digest(store.file_digest),
        "companions": checkpoint.companions_digest(),
    }
    return lambda manifest: content.items() <= source_in(manifest).items()


def _in_store(
    store: Store, fits: Callable[[Manifest], bool], remote: str | None
) -> Iterator[Candidate]:
    """List the complete packages in the store that fit: those that were built here, and those of the remote.

    Args:
        store: Of this machine.
        fits: Tells of a manifest whether it is of the model.
        remote: URL of the one that has the model; None if none has it, and then packages of any count.
    """
    for path in sorted((store.root / "packages").glob(f"*/{MANIFEST_NAME}")):
        try:
            content = path.read_bytes()
            if not fits(json.loads(content)):
                continue
            package = Package.open(path.parent)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, PackageError):
            continue  # damaged, or going away: `cache verify` tells
        origin = store.origin(package.build_key)
        if remote and not isinstance(origin, BuiltHere) and not _is_from(origin, remote):
            continue
        signed = (path.parent / SIGNATURE_NAME).exists()
        entry = Entry.of(package.manifest, content, signed=signed)
        yield Candidate(entry=entry, here=package.path, distrusted=_distrust(package, store))


def _is_from(origin: Origin | None, remote: str) -> bool:
    """Tell whether a package was pulled from a remote, whatever commit of it."""
    return origin is not None and unpinned(origin.url) == unpinned(remote)


def _distrust(package: Package, store: Store) -> str:
    try:
        trust.require_usable(package, store)
    except TrustError as error:
        return str(error)
    return ""


def _merged(here: Iterable[Candidate], there: Iterable[Candidate]) -> Iterator[Candidate]:
    """Join what the store and the remote have: of one build both need not be pulled."""
    held = {candidate.entry.path: candidate for candidate in here}
    for candidate in there:
        own = held.pop(candidate.entry.path, None)
        if own and _level(own) >= _level(candidate):
            yield replace(own, remote=candidate.remote)
        else:
            yield candidate
    yield from held.values()


def _level(candidate: Candidate) -> int:
    return VALIDATED.index(candidate.entry.validated)


def commit_of(model: str, revision: str) -> str:
    """Return the commit of a checkpoint's revision; what looks like one is taken as it is.

    Args:
        model: Model id.
        revision: Commit, or its beginning; tag or branch, which the Hub is asked for.

    Raises:
        ResolutionError: The Hub cannot be asked, or does not know it.
    """
    if _COMMIT.fullmatch(revision):
        return revision
    from qeff_zoo.checkpoint.hub_errors import hub_errors
    from qeff_zoo.errors import CheckpointError

    try:
        with hub_errors(model, revision):
            from huggingface_hub import HfApi

            return str(HfApi(library_name="qeff-zoo").model_info(model, revision=revision).sha)
    except CheckpointError as error:
        raise ResolutionError(
            f"Cannot tell the commit of {revision!r} of {model!r}: {error} Or give the commit, 40 hex digits."
        ) from error
