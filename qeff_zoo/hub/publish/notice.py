# SPDX-License-Identifier: Apache-2.0
"""Notices about published packages: that one is not to be chosen, is bad, or is superseded by a better one.

In: a remote, a package of it, and what became known. Out: a commit of its index and model card; the package stays
as it is.
"""

from dataclasses import dataclass

from qeff_zoo.errors import PublishError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import Index, Sign
from qeff_zoo.hub.naming import ambiguity, full_name, is_named
from qeff_zoo.hub.publish.card import card_upload
from qeff_zoo.hub.remotes import destination


@dataclass(frozen=True)
class Published:
    """A published notice.

    Args:
        path: Path of the package.
        state: State of the notice; None if it was withdrawn.
        url: URL of the commit.
    """

    path: str
    state: str | None
    url: str


def publish_notice(
    remote_url: str,
    package: str,
    state: str | None,
    *,
    reason: str,
    instead: str | None = None,
    sign: Sign | None = None,
    model: str | None = None,
) -> Published:
    """Publish a notice about a package, or take it back.

    Args:
        remote_url: `hf://org/repo`, `org/repo` or `file:///path`.
        package: Name of the package: key, 8 hex digits or more, variant, both, or path.
        state: One of `qeff_zoo.hub.entries.STATES`; None to withdraw the notice.
        reason: Reason for people, one line.
        instead: Name of a better package.
        sign: Signs the index; needed where it is signed already.
        model: Model of the package, and of the better one; None to search the whole index for them.

    Raises:
        PublishError: There is no such package, or the remote cannot be written.

    Example:
        >>> publish_notice(
        ...     "acme/zoo", "802246d4", "known_bad", reason="wrong answers"
        ... )  # doctest: +SKIP
    """
    if state is not None and not reason.strip():
        raise PublishError(
            "A notice needs a reason; expected one line for people. Give --reason TEXT."
        )
    remote = destination(remote_url)
    remote_url = remote.url
    paths: list[str] = []

    def update(index: Index) -> Index:
        entry = _entry(index, package, model, remote_url)
        paths.append(entry.path)
        if state is None:
            return index.with_notice(entry.path, None, entry.model)
        better = _entry(index, instead, model, remote_url).path if instead else None
        if better == entry.path:
            raise PublishError(
                f"{package!r} cannot be superseded by itself. Expected another package. Name that one."
            )
        return index.with_notice(entry.path, _notice(state, reason, better), entry.model)

    message = f"{state or 'undo'}: {package}"
    url = remote.commit(card_upload(remote), update, message, sign=sign)
    return Published(paths[-1], state, url)


def _notice(state: str, reason: str, instead: str | None) -> Notice:
    try:
        return Notice(state, reason, instead)
    except ValueError as error:
        raise PublishError(f"{error} Correct --reason.") from error


def _entry(index: Index, package: str, model: str | None, remote_url: str) -> Entry:
    indexed = index.find(lambda entry: is_named(package, entry.path), model)
    if len(indexed) == 1:
        return indexed[0]
    if indexed:
        names = (full_name(entry.model, entry.path) for entry in indexed)
        raise PublishError(ambiguity(package, names))
    raise PublishError(
        f"{remote_url!r} has no package {package!r}; expected a key, 8 hex digits or more, a variant or a path. See "
        f"`qeff-zoo ls {remote_url}`."
    )
