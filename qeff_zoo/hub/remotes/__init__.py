# SPDX-License-Identifier: Apache-2.0
"""Remotes, with one interface: Hub repositories, static web servers, folders.

In: a URL, or a model id and the user's settings. Out: a `Remote`; its `snapshot()` gives the index as it is now, and
reads files as they are there.

    hf://org/repo, hf://org/repo@revision    a repository of the Hub that HF_ENDPOINT names
    https://host/path                        files below it, on any web server
    http://localhost/path                    the same on this machine
    insecure+http://host/path                elsewhere, where anybody on the way may change what arrives
    file:///path                             a folder
"""

import re
from urllib.parse import quote, unquote, urlsplit

from qeff_zoo.checkpoint.hub_access import is_open
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.remotes.folder import FolderRemote
from qeff_zoo.hub.remotes.http import WebRemote
from qeff_zoo.hub.remotes.hub_api import HubRemote
from qeff_zoo.hub.remotes.protocol import Remote
from qeff_zoo.hub.urls import HUB
from qeff_zoo.settings import StoreSetting, settings

_REPOSITORY = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII
)
_INSECURE = "insecure+"


def open_remote(url: str, *, read_only: bool = False) -> Remote:
    """Read a URL. Nothing is reached yet.

    Args:
        url: Without `{org}` and `{name}`.
        read_only: Whether nothing is published there.

    Raises:
        RemoteError: The text is not the URL of a remote.

    Example:
        >>> open_remote("file:///srv/zoo").url
        'file:///srv/zoo'
    """
    if "{" in url or "}" in url:
        raise _no_remote(url, "it has a place that only a model id fills")
    if url.startswith(HUB) and (match := _REPOSITORY.fullmatch(url.removeprefix(HUB))):
        return HubRemote(url, match["repo"], match["revision"], read_only=read_only)
    try:
        parts = urlsplit(url.removeprefix(_INSECURE))
        host = parts.hostname
    except ValueError as error:
        raise _no_remote(url, str(error)) from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _no_remote(url, "it has a user, a query or a fragment")
    if parts.scheme == "file" and host in (None, "", "localhost") and parts.path.startswith("/"):
        return FolderRemote(url, unquote(parts.path), read_only=read_only)
    if is_open(url):
        raise _no_remote(
            url,
            "anybody on the way may change what arrives by http; say insecure+http://… to do so",
        )
    if parts.scheme in ("http", "https") and host:
        return WebRemote(url, url.removeprefix(_INSECURE).rstrip("/"), read_only=True)
    raise _no_remote(url, "its kind is not known")


def remote_at(where: str) -> Remote:
    """Parse a remote as the user wrote it.

    Args:
        where: `org/repo[@revision]`, or a remote's URL.

    Raises:
        RemoteError: The text is neither.
    """
    return open_remote(f"{HUB}{where}" if not is_url(where) and is_repository(where) else where)


def destination(where: str) -> HubRemote | FolderRemote:
    """Read where to publish to.

    Args:
        where: `org/repo`, or a remote's URL.

    Raises:
        PublishError: Nothing can be published there, or the settings forbid it.
        RemoteError: The text is not the URL of a remote.
    """
    remote = remote_at(where)
    url = remote.url
    if not isinstance(remote, HubRemote | FolderRemote):
        why = "a web server only gives"
    elif is_read_only(url):
        why = "the settings say that it is only read"
    elif isinstance(remote, HubRemote) and remote.is_pinned:
        why = "a commit does not change"
    else:
        return remote
    raise PublishError(
        f"Cannot publish to {url!r}: {why}. Expected hf://org/repo[@branch] or file:///path. Take one of those."
    )


def _no_remote(url: str, reason: str) -> RemoteError:
    return RemoteError(
        f"{url!r} names no remote: {reason}. Expected hf://org/repo, https://host/path or file:///path. Correct "
        "the URL."
    )


def is_url(reference: str) -> bool:
    """Whether a text is the URL of a remote, and not a model id or a path."""
    return "://" in reference


def is_repository(reference: str) -> bool:
    """Whether a reference can be a Hub repository: `org/repo` or `org/repo@revision`."""
    return _REPOSITORY.fullmatch(reference) is not None


def configured_remotes(model_id: str) -> list[Remote]:
    """Open the remotes of the settings, in their order, `{org}` and `{name}` filled from a model id.

    Args:
        model_id: `org/name`; of a name without `org`, remotes that have a place for it are left out.

    Raises:
        RemoteError: A URL of the settings is none.
        SettingsError: The settings cannot be read.
    """
    filled = ((setting, _filled(setting.url, model_id)) for setting in settings().stores)
    return [open_remote(url, read_only=setting.read_only) for setting, url in filled if url]


def _filled(template: str, model_id: str) -> str | None:
    if "{" not in template:
        return template
    org, slash, name = model_id.partition("@")[0].partition("/")
    if not slash:
        org, name = "", org
    if not name or ("{org}" in template and not org):
        return None
    return template.replace("{org}", quote(org, safe="")).replace("{name}", quote(name, safe=""))


def remotes_for(model_id: str) -> list[Remote]:
    """Open the remotes to search for a model, in order: those of the settings, then the Hub repository of that name.

    Args:
        model_id: `org/name`, or a repository `org/repo[@revision]`.
    """
    implied = [open_remote(f"hf://{model_id}")] if is_repository(model_id) else []
    remotes = configured_remotes(model_id)
    return remotes + [remote for remote in implied if remote.url not in {r.url for r in remotes}]


def is_read_only(url: str) -> bool:
    """Whether the settings forbid to publish to a remote.

    Args:
        url: URL of the remote, without a commit.
    """
    return any(setting.read_only and _fits(setting, url) for setting in settings().stores)


def is_optional(url: str) -> bool:
    """Whether a remote of the settings may lack an index: it is declared optional, or its URL has a placeholder.

    Args:
        url: URL of the remote.
    """
    return any(
        (setting.optional or "{" in setting.url) and _fits(setting, url)
        for setting in settings().stores
    )


def _fits(setting: StoreSetting, url: str) -> bool:
    pattern = (
        re.escape(setting.url.rstrip("/"))
        .replace(r"\{org\}", "[^/]+")
        .replace(r"\{name\}", "[^/]+")
    )
    return re.fullmatch(pattern, url.rstrip("/")) is not None
