# SPDX-License-Identifier: Apache-2.0
"""A remote that is a repository of the Hub: `hf://org/repo[@revision]`, read by plain HTTP at one commit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import seen, transport
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.retries import retried
from qeff_zoo.hub.seen import Seen
from qeff_zoo.hub.web_remote import WebSnapshot, read_index
from qeff_zoo.settings import offline as is_offline

_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_url(repo: str, revision: str) -> str:
    """Tell where the Hub serves the files of a revision.

    Args:
        repo: `org/repo`.
        revision: Branch, tag or commit.
    """
    from huggingface_hub import constants

    return f"{constants.ENDPOINT.rstrip('/')}/{repo}/resolve/{quote(revision, safe='')}"


def credentials(url: str) -> Mapping[str, str]:
    """Return the headers that a server may see: with the user's token if it is the Hub itself."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    hub, there = urlsplit(constants.ENDPOINT), urlsplit(url)
    own = (hub.scheme, hub.hostname, hub.port) == (there.scheme, there.hostname, there.port)
    found = build_hf_headers(token=None if own else False, library_name="qeff-zoo")
    return {name.lower(): value for name, value in found.items()}


class HubSnapshot(WebSnapshot):
    """One commit of a repository."""

    def _credentials(self, url: str) -> Mapping[str, str]:
        return credentials(url)


@dataclass(frozen=True)
class HubRemote:
    """A Hub repository with packages. See `qeff_zoo.hub.remotes.Remote`.

    Args:
        url: As it was given.
        repo: `org/repo`.
        revision: Branch, tag or commit; None for the main branch.
        read_only: Whether nothing is published here.
    """

    url: str
    repo: str
    revision: str | None = None
    read_only: bool = False

    @property
    def is_pinned(self) -> bool:
        """Whether it is one commit, which does not change."""
        return _COMMIT.fullmatch(self.revision or "") is not None

    def snapshot(self, *, offline: bool = False) -> HubSnapshot | None:
        pinned = seen.recall(self.url) if self.is_pinned else None
        if pinned:
            found: Seen | None = pinned
        elif offline or is_offline():
            found = seen.offline_index(self.url)
        else:
            found = seen.newest(self.url, self._fetch)
        return self.at(found) if found else None

    def at(self, found: Seen) -> HubSnapshot:
        """Return the commit that an index was seen at."""
        url = f"hf://{self.repo}@{found.commit}"
        return HubSnapshot(url, found.index, resolve_url(self.repo, found.commit))

    def _fetch(self, before: Seen | None) -> Seen | None:
        return retried(lambda: self._ask(before))

    def _ask(self, before: Seen | None) -> Seen | None:
        url = f"{resolve_url(self.repo, self.revision or 'main')}/{INDEX_NAME}"
        with transport.get(
            url, etag=before.etag if before else "", credentials=credentials
        ) as answer:
            found = read_index(answer, before, self.url)
        if found and not _COMMIT.fullmatch(found.commit):
            raise RemoteError(
                f"{url!r} was answered without a commit (X-Repo-Commit is {found.commit!r}); expected the Hub's 40 hex "
                "digits. Check HF_ENDPOINT; a plain web server is named by https://…"
            )
        return found
