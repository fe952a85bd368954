# SPDX-License-Identifier: Apache-2.0
"""Query of the remotes for a model: the first that has packages of it, or the reasons why none has.

In: name of the model. Out: `Claim`: the entries of one remote, without a choice.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from qeff_zoo.disk.regular import is_here
from qeff_zoo.disk.user_paths import is_path
from qeff_zoo.errors import RemoteError, ResolutionError
from qeff_zoo.hub.entries import Entry
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
from qeff_zoo.settings import offline

_SHOWN = 5  # models, in a message


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Answer of the remotes: entries of one model, none if no remote has it.

    Args:
        model: Model id that the packages have.
        folder: Local folder that is named instead of a remote's model.
        entries: Entries of the packages.
        snapshot: Snapshot of the remote that has them.
        notes: Remotes that had nothing or did not respond.
        unanswered: Reason why a remote that may have the model did not respond.
        silent: Remote that was named itself and has no index.
    """

    model: str
    folder: str | None = None
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    notes: tuple[str, ...] = ()
    unanswered: RemoteError | None = None
    silent: Remote | None = None


def query(reference: str, remote: str | None, key: str | None) -> Claim:
    """Query the remotes for a model.

    Args:
        reference: Model id, repository of packages, URL of a remote, or folder of a checkpoint.
        remote: URL or `org/repo` of the only remote that is read; None for those of the settings.
        key: Key of the only package to consider; selects the model in a remote with several.

    Raises:
        ResolutionError: The reference names no model, or several.
        RemoteError: The remote that was named does not answer, or has no index.
    """
    if remote is not None:
        if is_url(reference):
            raise ResolutionError(
                f"{reference!r} is a remote, and so is {remote!r}. Expected a model of one remote. Name the model."
            )
        snapshot = snapshot_of(remote_at(remote))
        entries = snapshot.index.of_model(reference)
        notes = (*snapshot.index.warnings, *(() if entries else (summary(snapshot),)))
        return Claim(model=reference, entries=entries, snapshot=snapshot, notes=notes)
    if is_url(reference):
        claim = _query_remotes([], open_remote(reference), reference, key)
        if claim.unanswered:
            raise claim.unanswered
        return claim
    if is_here(reference):  # no other folder of that name is meant
        return Claim(model=Path(reference).resolve().name, folder=reference)
    if is_path(reference):  # a misspelled one: no remote has it
        return Claim(model=reference)
    implied = open_remote(f"hf://{reference}") if is_repository(reference) else None
    return _query_remotes(configured_remotes(reference), implied, reference, key)


def _query_remotes(
    configured: Iterable[Remote], named: Remote | None, reference: str, key: str | None
) -> Claim:
    """Search remotes in order until one has the model; then the named one, whatever model it has."""
    notes: list[str] = []
    for remote in configured:
        try:
            snapshot = remote.snapshot(offline=offline())
            entries = snapshot.index.of_model(reference) if snapshot else ()
        except RemoteError as error:
            # The next may have another package of this name, which is not for us to take instead.
            return Claim(model=reference, notes=(*notes, str(error)), unanswered=error)
        if snapshot is None and not is_optional(remote.url):
            return Claim(model=reference, notes=tuple(notes), unanswered=_without_index(remote))
        notes += snapshot.index.warnings if snapshot else ()
        if entries:
            return Claim(model=reference, entries=entries, snapshot=snapshot, notes=tuple(notes))
        notes.append(f"{remote.url} has {'no package of it' if snapshot else 'no index'}.")
    if named is None:
        return Claim(model=reference, notes=tuple(notes))
    try:
        snapshot = named.snapshot(offline=offline())
        model = _only_model(snapshot, reference, key) if snapshot else reference
        entries = snapshot.index.of_model(model) if snapshot else ()
    except RemoteError as error:
        # A model on the Hub need not have packages, so this alone is no reason to stop.
        unanswered = error if is_url(reference) else None
        return Claim(model=reference, notes=(*notes, str(error)), unanswered=unanswered)
    if snapshot is None:
        return Claim(model=reference, notes=tuple(notes), silent=named)
    notes += snapshot.index.warnings
    return Claim(model=model, entries=entries, snapshot=snapshot, notes=tuple(notes))


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
            raise ResolutionError(
                ambiguity(key, (full_name(name.model, name.path) for name in named))
            )
        models = tuple(entry.model for entry in named) or models
    if len(models) == 1:
        return models[0]
    unknown = "" if key is None else f" None of them is {key!r}."
    raise ResolutionError(
        f"{summary(snapshot)}{unknown} Expected one model. Name it, with `--from {reference}`, or the key of a "
        "package, with `--key`."
    )


def summary(snapshot: Snapshot) -> str:
    """Return a sentence that lists the models of a remote."""
    number = sum(1 for _ in islice(snapshot.index.each_model(), _SHOWN + 1))
    count = f"{number} models" if number > 1 else "one model"
    count = f"more than {_SHOWN} models" if number > _SHOWN else count
    some = f"packages of {count}: {some_models(snapshot.index)}" if number else "no packages"
    return f"{snapshot.url} has {some}."


def some_models(index: Index) -> str:
    """Name the first models of an index, of which as much is read as they need."""
    first = sorted(islice(index.each_model(), _SHOWN + 1))
    return ", ".join(first[:_SHOWN]) + (", …" if len(first) > _SHOWN else "")


def snapshot_of(remote: Remote) -> Snapshot:
    """Fetch the index of a named remote.

    Raises:
        RemoteError: The remote does not respond, or has no index.
    """
    if snapshot := remote.snapshot(offline=offline()):
        return snapshot
    raise RemoteError(
        absence(remote)
        or f"{remote.url} has no index. Expected a remote that packages were published to. Check its name."
    )


def absence(remote: Remote) -> str:
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
