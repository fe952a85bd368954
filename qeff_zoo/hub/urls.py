# SPDX-License-Identifier: Apache-2.0
"""What is the same remote, however its URL is written.

In: a remote's URL. Out: the one form of it that is remembered and compared.
"""

import posixpath
import re
from collections.abc import Collection
from urllib.parse import quote, unquote, urlsplit

HUB = "hf://"
_INSECURE = "insecure+"
_PORTS = {"http": 80, "https": 443}
_OF_COMMIT = re.compile(rf"({HUB}[^@]+)@[0-9a-f]{{40}}")


def canonical(url: str) -> str:
    """Return the one way to write a remote's URL.

    Args:
        url: URL of a remote; `@revision` stays, except for the main branch.
    """
    if url.startswith(HUB):
        return url.rstrip("/").removesuffix("@main")
    parts = urlsplit(url.removeprefix(_INSECURE))
    path = posixpath.normpath("/" + unquote(parts.path).strip("/"))
    host = "" if parts.scheme == "file" else (parts.hostname or "")
    port = f":{parts.port}" if parts.port not in (None, _PORTS.get(parts.scheme)) else ""
    return f"{parts.scheme}://{host}{port}{quote(path)}".rstrip("/")


def unpinned(url: str) -> str:
    """Return the URL of a remote as it is now, without the commit or branch that it may name.

    Args:
        url: URL of a remote.
    """
    return canonical(url.partition("@")[0] if url.startswith(HUB) else url)


def is_named(url: str, remotes: Collection[str]) -> bool:
    """Whether an index names a remote. A commit may be of any branch of its repository.

    Args:
        url: URL of the remote.
        remotes: Canonical URLs.
    """
    if commit := _OF_COMMIT.fullmatch(canonical(url)):
        return commit[1] in map(unpinned, remotes)
    return canonical(url) in remotes
