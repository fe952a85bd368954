# SPDX-License-Identifier: Apache-2.0
"""Where packages of a model may come from: the store, and the first remote that has any.

In: what a user called the model. Out: `Found`: the packages, not judged yet, and what was asked on the way.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.disk.regular import is_here, read_regular
from qeff_zoo.disk.user_paths import is_path
from qeff_zoo.errors import PackageError, RemoteError, ResolutionError, TrustError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.naming import ambiguity, full_name, is_named
from qeff_zoo.hub.remotes import (
    configured_remotes,
    is_optional,
    is_repository,
    is_url,
    open_remote,
    remote_at,
)
from qeff_zoo.hub.remotes.hub_api import HubRemote
from qeff_zoo.hub.remotes.protocol import Remote, Snapshot
from qeff_zoo.hub.resolve.choose import Candidate
from qeff_zoo.hub.trust_check import known_notice, require_trusted
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, VALIDATED, Manifest, source_in
from qeff_zoo.settings import offline
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BuiltHere, Origin

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SHOWN = 5  # models, in a message


@dataclass(frozen=True, kw_only=True)
class Found:
    """What there is of a model.

    Args:
        model: Model id that the packages have.
        candidates: The packages.
        checkpoint: Checkpoint that could be built: a model id or a folder; None if the named remote has no packages.
        snapshot: Snapshot of the remote that has packages of it.
        notices: Notices of that remote.
        notes: Places that had nothing or did not respond.
        unanswered: Why a remote that may have the model could not be asked.
        absent: Why there can be nothing: the Hub knows no such repository.
    """

    model: str
    candidates: tuple[Candidate, ...] = ()
    checkpoint: str | None = None
    snapshot: Snapshot | None = None
    notices: Mapping[str, Notice] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None
    absent: str = ""


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """What the remotes answered: entries of one model, none if no remote had it.

    `folder` is that of a local one, `silent` the remote that was named itself and has no index.
    """

    model: str
    folder: str | None = None
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None
    silent: Remote | None = None


def look_up(
    reference: str,
    store: Store,
    *,
    place: Place | None = None,
    remote: str | None = None,
    key: str | None = None,
) -> Found:
    """Look a model up in the store and the remotes.

    Args:
        reference: Model id, repository of packages, URL of a remote, or folder of a checkpoint.
        store: Local store.
        place: Which checkpoint of that name is meant.
        remote: URL or `org/repo` of the only remote to ask for that model; None for those of the settings.
        key: Key of the only package to consider; selects the model in a remote with several.

    Raises:
        ResolutionError: The reference names no model, or several.
        RemoteError: The remote that was named does not answer, or has no index.
        CheckpointError: The folder is not a checkpoint.
        TrustError: A remote has an older index than it had.
    """
    if not reference.strip():
        raise ResolutionError(
            "No model is named. Expected a model id (org/name), a Hub repository of packages, or the URL of a remote."
        )
    claim = _claim(reference, remote, key)
    url = claim.snapshot.url if claim.snapshot else None
    unsigned = trust.refusal_of_unsigned(url) if url else ""
    there = (
        Candidate(entry=entry, remote=url, distrusted="" if entry.signed else unsigned)
        for entry in claim.entries
    )
    fits = (
        _is_of_folder(claim.folder, store, place or {})
        if claim.folder
        else _is_of_model(claim.model)
    )
    found = _merged(_in_store(store, fits, url), there)
    if remote is not None or is_url(reference) or claim.model != reference:
        # A remote was named: what it has alone.
        found = (candidate for candidate in found if candidate.remote or claim.folder)
    candidates = tuple(found)
    absent, notes = "", claim.notes
    if claim.silent:
        absent = "" if candidates else _absence(claim.silent)
        absent += (
            " There is no such folder here either." if absent and not is_url(reference) else ""
        )
        notes = notes if absent else (*notes, f"{claim.silent.url} has no index.")
    return Found(
        model=claim.model,
        candidates=candidates,
        checkpoint=claim.folder or (None if is_url(claim.model) else claim.model),
        snapshot=claim.snapshot,
        notices=claim.snapshot.index.leaf_of(claim.model).notices if claim.snapshot else {},
        notes=notes,
        unanswered=claim.unanswered,
        absent=absent,
    )


def listing(snapshot: Snapshot, model: str | None, store: Store) -> list[Candidate]:
    """List what a remote has, judged by nothing: by model, and then as it was published.

    Args:
        snapshot: Snapshot of the remote.
        model: The only model of interest; None for all.
        store: Local store; a candidate is `here` if the store has a package of that path, from any origin.

    Raises:
        ResolutionError: The remote has packages, and none of the model.
    """
    index = snapshot.index
    here = {one.entry.path: one.here for one in _in_store(store, lambda _: True, None)}
    if model and index.packages and not index.of_model(model):
        raise ResolutionError(f"{_has(snapshot)} Expected one of these, not {model!r}. Correct it.")
    found = (
        Candidate(
            entry=entry,
            remote=snapshot.url,
            here=here.get(entry.path),
            notice=leaf.notices.get(entry.path),
        )
        for leaf in (index.leaves() if model is None else [index.leaf_of(model)])
        for entry in leaf.entries
        if model in (None, entry.model)
    )
    return sorted(found, key=lambda candidate: candidate.entry.model)


def snapshot_of(remote: Remote) -> Snapshot:
    """Fetch the index of a named remote.

    Raises:
        RemoteError: The remote does not respond, or has no index.
    """
    if snapshot := remote.snapshot(offline=offline()):
        return snapshot
    raise RemoteError(
        _absence(remote)
        or f"{remote.url} has no index. Expected a remote that packages were published to. Check its name."
    )


def _absence(remote: Remote) -> str:
    """Explain a missing index by a missing repository, if that is the reason."""
    if not isinstance(remote, HubRemote) or offline():
        return ""
    with suppress(RemoteError):  # unknown if the Hub is unreachable
        if not remote.is_there():
            return (
                f"The Hub has no repository {remote.repo!r}, or it is private. Expected one that this user may read. "
                "Check its name; for a private one run `hf auth login` or set HF_TOKEN."
            )
    return ""


def _claim(reference: str, remote: str | None, key: str | None) -> _Claim:
    if remote is not None:
        if is_url(reference):
            raise ResolutionError(
                f"{reference!r} is a remote, and so is {remote!r}. Expected a model of one remote. Name the model."
            )
        snapshot = snapshot_of(remote_at(remote))
        entries = snapshot.index.of_model(reference)
        notes = (*snapshot.index.warnings, *(() if entries else (_has(snapshot),)))
        return _Claim(model=reference, entries=entries, snapshot=snapshot, notes=notes)
    if is_url(reference):
        claim = _query_remotes([], open_remote(reference), reference, key)
        if claim.unanswered:
            raise claim.unanswered
        return claim
    if is_here(reference):  # no other folder of that name is meant
        return _Claim(model=Path(reference).resolve().name, folder=reference)
    if is_path(reference):  # a misspelled one: no remote has it
        return _Claim(model=reference)
    implied = open_remote(f"hf://{reference}") if is_repository(reference) else None
    return _query_remotes(configured_remotes(reference), implied, reference, key)


def _query_remotes(
    configured: Iterable[Remote], named: Remote | None, reference: str, key: str | None
) -> _Claim:
    """Search remotes in order until one has the model; then the named one, whatever model it has."""
    notes: list[str] = []
    for remote in configured:
        try:
            snapshot = remote.snapshot(offline=offline())
            entries = snapshot.index.of_model(reference) if snapshot else ()
        except RemoteError as error:
            # The next may have another package of this name, which is not for us to take instead.
            return _Claim(model=reference, notes=(*notes, str(error)), unanswered=error)
        if snapshot is None and not is_optional(remote.url):
            return _Claim(model=reference, notes=tuple(notes), unanswered=_without_index(remote))
        notes += snapshot.index.warnings if snapshot else ()
        if entries:
            return _Claim(model=reference, entries=entries, snapshot=snapshot, notes=tuple(notes))
        notes.append(f"{remote.url} has {'no package of it' if snapshot else 'no index'}.")
    if named is None:
        return _Claim(model=reference, notes=tuple(notes))
    try:
        snapshot = named.snapshot(offline=offline())
        model = _only_model(snapshot, reference, key) if snapshot else reference
        entries = snapshot.index.of_model(model) if snapshot else ()
    except RemoteError as error:
        # A model on the Hub need not have packages, so this alone is no reason to stop.
        unanswered = error if is_url(reference) else None
        return _Claim(model=reference, notes=(*notes, str(error)), unanswered=unanswered)
    if snapshot is None:
        return _Claim(model=reference, notes=tuple(notes), silent=named)
    notes += snapshot.index.warnings
    return _Claim(model=model, entries=entries, snapshot=snapshot, notes=tuple(notes))


def _without_index(remote: Remote) -> RemoteError:
    """Explain that a remote with packages shows none, as a private one does without a login."""
    return RemoteError(
        f"{remote.url} has no index; expected one, as the settings name it. Check its URL, sign in with `hf auth "
        "login` or HF_TOKEN if it is private, or mark it as optional: opt+URL."
    )


def _only_model(snapshot: Snapshot, reference: str, key: str | None) -> str:
    """Return the model that is meant where a remote was named: by a key, or because it has no other."""
    index = snapshot.index
    if index.of_model(reference) or not index.packages:
        return reference
    models = tuple(
        islice(index.each_model(), 2)
    )  # more are not needed to know that there are several
    if key is not None:
        named = index.find(lambda entry: is_named(key, entry.path))
        if len(named) > 1:
            raise ResolutionError(ambiguity(key, (full_name(one.model, one.path) for one in named)))
        models = tuple(entry.model for entry in named) or models
    if len(models) == 1:
        return models[0]
    unknown = "" if key is None else f" None of them is {key!r}."
    raise ResolutionError(
        f"{_has(snapshot)}{unknown} Expected one model. Name it, with `--from {reference}`, or the key of a package, "
        "with `--key`."
    )


def _has(snapshot: Snapshot) -> str:
    """List the models of a remote."""
    number = sum(1 for _ in islice(snapshot.index.each_model(), _SHOWN + 1))
    count = f"{number} models" if number > 1 else "one model"
    count = f"more than {_SHOWN} models" if number > _SHOWN else count
    some = f"packages of {count}: {some_models(snapshot.index)}" if number else "no packages"
    return f"{snapshot.url} has {some}."


def some_models(index: Index) -> str:
    """Name the first models of an index, of which as much is read as they need."""
    first = sorted(islice(index.each_model(), _SHOWN + 1))
    return ", ".join(first[:_SHOWN]) + (", …" if len(first) > _SHOWN else "")


def _is_of_model(model: str) -> Callable[[Manifest], bool]:
    """Whether packages are of a model: by source, or for a folder by name."""
    return lambda manifest: model == source_in(manifest).get("model_id", manifest["name"])


def _is_of_folder(folder: str, store: Store, place: Place) -> Callable[[Manifest], bool]:
    """Whether packages are of a folder: by content, since a folder's content changes and its name does not."""
    checkpoint = open_checkpoint(folder, **place)
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
        except (OSError, ValueError, KeyError, TypeError, AttributeError, PackageError):
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
    from qeff_zoo.checkpoint.hub_access import hub_token
    from qeff_zoo.checkpoint.hub_errors import hub_errors
    from qeff_zoo.errors import CheckpointError

    try:
        with hub_errors(model, revision):
            from huggingface_hub import HfApi

            api = HfApi(library_name="qeff-zoo", token=hub_token())
            return str(api.model_info(model, revision=revision).sha)
    except CheckpointError as error:
        raise ResolutionError(
            f"Cannot find the commit of {revision!r} of {model!r}: {error} Or give the commit, 40 hex digits."
        ) from error
