# SPDX-License-Identifier: Apache-2.0
"""Remotes that are read by HTTP: a static web server (`https://…`), and what a Hub repository shares with it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import seen, transport
from qeff_zoo.hub.index import INDEX_LIMIT, INDEX_NAME, Index, decode
from qeff_zoo.hub.retries import retried
from qeff_zoo.hub.seen import Seen
from qeff_zoo.package.manifest import unsafe_path
from qeff_zoo.settings import offline as is_offline


@dataclass(frozen=True)
class WebSnapshot:
    """Files below a URL, and the index as it was when it was read. See `qeff_zoo.hub.remotes.Snapshot`.

    Args:
        url: Of the remote, with its commit if it has commits.
        index: What it has.
        base: Where its files are.
    """

    url: str
    index: Index
    base: str

    def read(self, path: str, *, limit: int) -> bytes:
        def attempt() -> bytes:
            with self.stream(path) as pieces:
                return transport.read_all(pieces, limit, f"{path!r} of {self.url!r}")

        return retried(attempt)

    @contextmanager
    def stream(self, path: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        if reason := unsafe_path(path):
            raise RemoteError(
                f"Cannot read {path!r} of {self.url!r}: the path {reason}. Expected a file of the remote."
            )
        url = f"{self.base}/{quote(path)}"
        with transport.get(url, offset=offset, credentials=self._credentials) as answer:
            if answer.status == transport.NOT_FOUND:
                raise RemoteError(
                    f"{self.url!r} has no {path!r}; expected what its index lists. Publish it again."
                )
            yield answer.pieces

    def _credentials(self, url: str) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class WebRemote:
    """A static web server with packages. See `qeff_zoo.hub.remotes.Remote`.

    Args:
        url: As it was given.
        base: Where its files are.
        read_only: Nothing can be published by HTTP.
    """

    url: str
    base: str
    read_only: bool = True

    def snapshot(self, *, offline: bool = False) -> WebSnapshot | None:
        if offline or is_offline():
            found: Seen | None = seen.offline_index(self.url)
        else:
            found = seen.newest(self.url, self._fetch)
        return WebSnapshot(self.url, found.index, self.base) if found else None

    def _fetch(self, before: Seen | None) -> Seen | None:
        return retried(lambda: self._ask(before))

    def _ask(self, before: Seen | None) -> Seen | None:
        with transport.get(
            f"{self.base}/{INDEX_NAME}", etag=before.etag if before else ""
        ) as answer:
            return read_index(answer, before, self.url)


def read_index(answer: transport.Answer, before: Seen | None, url: str) -> Seen | None:
    """Read what a server answered when it was asked for an index.

    Args:
        answer: To a request with the etag of `before`.
        before: What was seen last.
        url: Of the remote.
    """
    if answer.status == transport.NOT_FOUND:
        return None
    if before and answer.status == transport.NOT_MODIFIED:
        # The index of the commit seen then is the index now, whether or not the answer names a commit.
        return Seen(before.content, before.index, before.etag, answer.commit or before.commit)
    content = transport.read_all(answer.pieces, INDEX_LIMIT, f"The index of {url!r}")
    return Seen(content, decode(content), answer.etag, answer.commit)
