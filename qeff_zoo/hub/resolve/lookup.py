# SPDX-License-Identifier: Apache-2.0
"""Sources of the packages of a model: the store, and the first remote that has any.

In: name of the model. Out: its packages, without a choice, and the remotes that were read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from qeff_zoo.checkpoint.files import Place
from qeff_zoo.errors import RemoteError, ResolutionError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.remotes import is_url
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.hub.resolve.choose import Candidate
from qeff_zoo.hub.resolve.claims import absence, query, summary
from qeff_zoo.hub.resolve.stored import in_store, is_of_folder, is_of_model
from qeff_zoo.package.manifest import VALIDATED
from qeff_zoo.store import Store

_COMMIT, _BEGINNING = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{7,39}")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Packages of a model, and the state of their sources.

    Args:
        model: Model id that the packages have.
        candidates: The packages.
        checkpoint: Checkpoint that could be built: a model id or a folder; None if the named remote has no packages.
        snapshot: Snapshot of the remote that has packages of it.
        notices: Notices of that remote.
        notes: Remotes without packages of it, or without a response, a sentence each.
        unanswered: Reason why a remote that may have the model did not respond.
        absent: Reason for an absent package: the Hub has no such repository.
    """

    model: str
    candidates: tuple[Candidate, ...] = ()
    checkpoint: str | None = None
    snapshot: Snapshot | None = None
    notices: Mapping[str, Notice] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None
    absent: str = ""


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
        place: Options that select a checkpoint beside its name.
        remote: URL or `org/repo` of the only remote that is read for the model; None for those of the settings.
        key: Key of the only package to consider; selects the model in a remote with several.

    Raises:
        ResolutionError: The reference names no model, or several.
        RemoteError: The named remote does not respond, or has no index.
        CheckpointError: The folder is not a checkpoint.
        TrustError: The index of a remote is older than at an earlier lookup.
    """
    if not reference.strip():
        raise ResolutionError(
            "No model is named. Expected a model id (org/name), a Hub repository of packages, or the URL of a remote."
        )
    claim = query(reference, remote, key)
    url = claim.snapshot.url if claim.snapshot else None
    unsigned = trust.refusal_of_unsigned(url) if url else ""
    there = (
        Candidate(entry=entry, remote=url, distrusted="" if entry.signed else unsigned)
        for entry in claim.entries
    )
    fits = (
        is_of_folder(claim.folder, store, place or {}) if claim.folder else is_of_model(claim.model)
    )
    merged = _merged(in_store(store, fits, url), there)
    if remote is not None or is_url(reference) or claim.model != reference:
        # Only packages of the named remote.
        merged = (candidate for candidate in merged if candidate.remote or claim.folder)
    candidates = tuple(merged)
    absent, notes = "", claim.notes
    if claim.silent:
        absent = "" if candidates else absence(claim.silent)
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
    """List all packages of a remote, unfiltered: by model, and then in the order of publication.

    Args:
        snapshot: Snapshot of the remote.
        model: The only model of interest; None for all.
        store: Local store; a candidate is `here` if the store has a package of that path, from any origin.

    Raises:
        ResolutionError: The remote has packages, and none of the model.
    """
    index = snapshot.index
    here = {one.entry.path: one.here for one in in_store(store, lambda _: True, None)}
    if model and index.packages and not index.of_model(model):
        raise ResolutionError(
            f"{summary(snapshot)} Expected one of these, not {model!r}. Correct it."
        )
    candidates = (
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
    return sorted(candidates, key=lambda candidate: candidate.entry.model)


def _merged(here: Iterable[Candidate], there: Iterable[Candidate]) -> Iterator[Candidate]:
    """Join packages of store and remote; of a build in both, the store's unless the remote's is better validated."""
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
    """Return the commit of a checkpoint's revision, or its beginning.

    Args:
        model: Model id.
        revision: Commit of 40 hex digits, unchecked; tag or branch, which the Hub resolves; or 7 hex digits or more
            of a commit, unchecked, if the Hub resolves no such name: tags may have hex digits alone ("20240620").

    Raises:
        ResolutionError: The Hub does not respond, or has no such revision.
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
        if _BEGINNING.fullmatch(revision):
            return revision
        raise ResolutionError(
            f"Cannot find the commit of {revision!r} of {model!r}: {error} Or give the commit, 40 hex digits."
        ) from error
