# SPDX-License-Identifier: Apache-2.0
"""A remote that is a static web server (`https://…`), and HTTP as every remote needs it.

One GET: redirects followed, a token that never leaves the Hub, errors in our words, repeated only where the network was
in the way. Goes through huggingface_hub's client, imported when it is used, so that proxies and certificates mean what
they mean everywhere.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from qeff_zoo.checkpoint.hub_access import LOOPBACK, is_open
from qeff_zoo.checkpoint.hub_errors import LATER, http_error
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import INDEX_LIMIT, decode
from qeff_zoo.hub.remotes.protocol import require_safe
from qeff_zoo.hub.trust import index_cache
from qeff_zoo.hub.trust.index_cache import FetchedIndex, reading
from qeff_zoo.settings import offline as is_offline

NOT_MODIFIED, NOT_FOUND = 304, 404
#: The Hub's way to say that a file or a repository is not there; for a private one with 401, to hide that it exists.
ABSENT = ("EntryNotFound", "RepoNotFound")
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_LONGEST_URL = 8192
_TIMEOUT_SECONDS = 30.0
#: A body that brings fewer bytes a second, on average over its first seconds or all of them, is given up.
_SLOWEST, _FIRST_SECONDS = 1024, 30.0
#: What a redirect says of the file that it leads to.
_KEPT = ("x-repo-commit", "x-linked-etag", "x-error-code")

_Result = TypeVar("_Result")
ATTEMPTS = 5
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 8.0
_LONGEST_RETRY_AFTER = 60.0


# --- repeating ---------------------------------------------------------------------------------


def pauses(attempts: int = ATTEMPTS) -> Iterator[float]:
    """Return the seconds to wait between attempts: they double, and differ from client to client.

    Args:
        attempts: Number of attempts, including the first.
    """
    for number in range(attempts - 1):
        yield min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def pause_after(error: RemoteError, waits: Iterator[float]) -> float | None:
    """Return the seconds to wait before the next attempt; None if there is to be none.

    Args:
        error: Error of the last attempt.
        waits: Pauses from `pauses`. A longer `Retry-After` of the server has precedence, up to a minute.
    """
    pause = next(waits, None) if error.retryable else None
    return None if pause is None else max(pause, min(error.retry_after, _LONGEST_RETRY_AFTER))


def retried(action: Callable[[], _Result]) -> _Result:
    """Do something until it succeeds, a limited number of times.

    Args:
        action: Safe to be done twice; raises a `RemoteError` that is `retryable` when it should be.

    Raises:
        RemoteError: The error of the last attempt.
    """
    waits = pauses()
    while True:
        try:
            return action()
        except RemoteError as error:
            if (pause := pause_after(error, waits)) is None:
                raise
        time.sleep(pause)


def retry_after(headers: Mapping[str, str]) -> float:
    """Parse the pause in seconds that a server requests; 0 without one.

    Args:
        headers: Headers of the response, lower-case names.
    """
    value = headers.get("retry-after", "").strip()
    if value.isdecimal() and value.isascii():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without its zone
        return 0.0


class RangesIgnored(RemoteError):  # noqa: N818 -- no failure: the file can be had in one stream
    """A server returned a whole file in response to a range request."""


# --- one request -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a server gave.

    Args:
        url: URL of the response, after redirects.
        status: 200, 206, 304 (the file is unchanged) or 404.
        headers: Lower-case names; some of those of redirects too.
        pieces: The body as it arrives.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes] = field(repr=False)

    @property
    def etag(self) -> str:
        """Entity tag of the content; "" without one."""
        return self.headers.get("x-linked-etag") or self.headers.get("etag", "")

    @property
    def commit(self) -> str:
        """Of a Hub repository, the commit that was read; else ""."""
        return self.headers.get("x-repo-commit", "")


@contextmanager
def get(
    url: str,
    *,
    etag: str = "",
    offset: int = 0,
    end: int | None = None,
    credentials: Callable[[str], Mapping[str, str]] = lambda _: {},
) -> Iterator[Answer]:
    """Fetch a file.

    Args:
        url: URL of the file.
        etag: Entity tag of the local content; status 304 if it is current.
        offset: The first byte that is wanted. What a server sends from before it is thrown away.
        end: The first byte that is not wanted any more; None for the whole rest.
        credentials: Function from a URL to the headers for its server; called again after each redirect.

    Raises:
        RemoteError: There is no such answer; `retryable` if there may be one later. Also from `pieces`.
        RangesIgnored: An end was given, and the server gives the whole file.
    """
    wanted = {"if-none-match": etag} if etag else {}
    if offset or end is not None:
        wanted["range"] = f"bytes={offset}-{'' if end is None else end - 1}"
    with ExitStack() as stack:
        answer = _follow(stack, url, wanted, credentials)
        if answer.status in (200, 206):
            start = _start(answer)
            if start > offset:
                raise _odd(answer.url, f"it sent bytes from {start} on when asked from {offset}")
            if end is not None and answer.status == 200:
                raise RangesIgnored(f"{answer.url!r} gives the whole file when asked for a part.")
            pieces = _from(offset - start, answer.pieces)
            pieces = pieces if end is None else _first(end - offset, pieces)
            answer = Answer(answer.url, answer.status, answer.headers, pieces)
        yield answer


def _follow(
    stack: ExitStack,
    url: str,
    wanted: Mapping[str, str],
    credentials: Callable[[str], Mapping[str, str]],
) -> Answer:
    etag = wanted.get("if-none-match", "")
    kept: dict[str, str] = {}
    for _ in range(_MOST_REDIRECTS + 1):
        # Bytes as they are: no server may compress them on the way, and Range counts them.
        headers = {"accept-encoding": "identity", **credentials(url), **wanted}
        hop = stack.enter_context(ExitStack())
        answer = hop.enter_context(_once(url, headers))
        answer = Answer(url, answer.status, {**answer.headers, **kept}, answer.pieces)
        if etag and answer.status < 400 and answer.etag == etag:
            return Answer(url, NOT_MODIFIED, answer.headers, answer.pieces)
        if answer.status not in _REDIRECTS:
            return _checked(answer)
        kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        hop.close()
        url = _redirected(url, answer.headers.get("location", ""))
    raise _odd(url, f"it was redirected more than {_MOST_REDIRECTS} times")


@contextmanager
def _once(url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
    if is_offline():
        raise RemoteError(
            f"Cannot ask {url!r}: QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set. Expected what is here already. Connect, "
            "or ask for something that was seen before."
        )
    from huggingface_hub import get_session

    with ExitStack() as stack:
        with _reaching(url):
            response = stack.enter_context(
                get_session().stream(
                    "GET",
                    url,
                    headers=dict(headers),
                    timeout=_TIMEOUT_SECONDS,
                    follow_redirects=False,
                )
            )
        fields = {name.lower(): value for name, value in response.headers.items()}
        yield Answer(url, response.status_code, fields, _pieces(url, response))


def _pieces(url: str, response: Any) -> Iterator[bytes]:
    waited, received = 0.0, 0
    pieces = response.iter_raw()
    while True:
        begun = time.monotonic()
        with _reaching(url):
            piece = next(pieces, None)
        if piece is None:
            return
        waited, received = waited + time.monotonic() - begun, received + len(piece)
        # Only what the server takes counts, not what is done here with each piece.
        if waited > _FIRST_SECONDS and received < waited * _SLOWEST:
            raise RemoteError(
                f"Cannot read {url!r}: {received:,} bytes came in {waited:.0f} seconds. Expected {_SLOWEST:,} bytes a "
                "second at least. Check the connection, or take another remote."
            )
        yield piece


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Convert connection errors to ours."""
    try:
        yield
    except (http_error(), OSError) as error:
        what = str(error) or type(error).__name__
        raise RemoteError(
            f"Cannot read {url!r}: {what}. Expected a server that answers. Check the connection, then run the command "
            "again.",
            retryable=True,
        ) from error


def _redirected(url: str, location: str) -> str:
    """Return the target of a redirect; refuse one over a less protected connection."""
    try:
        target = urljoin(url, location)
        before, after = urlsplit(url), urlsplit(target)
        _ = after.port
    except ValueError as error:
        raise _odd(url, f"it leads to {location!r}: {error}") from error
    readable = target.isascii() and target.isprintable() and len(target) <= _LONGEST_URL
    if not location or not readable or after.scheme not in ("http", "https") or not after.hostname:
        raise _odd(url, f"it leads to {location[:200]!r}")
    kept_here = before.scheme == "http" and after.hostname in LOOPBACK
    if after.scheme == "http" and not (is_open(url) or kept_here):
        raise RemoteError(
            f"Cannot read {url!r}: it leads to {location!r}, and anybody on the way may change what arrives by http. "
            "Expected a redirect to https. Take another remote, or correct the server; HF_ENDPOINT may name it."
        )
    return target


def _checked(answer: Answer) -> Answer:
    """Pass on what can be used; raise what cannot."""
    status, code = answer.status, answer.headers.get("x-error-code", "")
    if status in (200, 206, NOT_MODIFIED):
        return answer
    if (status in (NOT_FOUND, 410) and code != "RevisionNotFound") or (
        status == 401 and code in ABSENT
    ):
        return Answer(answer.url, NOT_FOUND, answer.headers, answer.pieces)
    reason = answer.headers.get("x-error-message") or code
    message = f"{answer.url!r} was refused with status {status}{f' ({reason})' if reason else ''}."
    if status in (401, 403):
        advice = "Expected a token with access. Run `hf auth login` or set HF_TOKEN; accept the terms of a gated one."
    elif status in LATER:
        advice = "Expected an answer. Run the command again later."
    else:
        advice = "Expected a file. Check the URL and its revision."
    raise RemoteError(
        f"{message} {advice}", retryable=status in LATER, retry_after=retry_after(answer.headers)
    )


def _start(answer: Answer) -> int:
    """Return the offset in the file of a body's first byte."""
    if answer.status == 200:  # the server does not know Range, or does not care
        return 0
    unit, _, range_ = answer.headers.get("content-range", "").partition(" ")
    first = range_.partition("-")[0]
    if unit != "bytes" or not first.isdecimal():
        raise _odd(answer.url, f"it sent a part without saying which: {unit!r} {range_!r}")
    return int(first)


def _from(surplus: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Discard that many bytes, then yield the rest."""
    for piece in pieces:
        if surplus < len(piece):
            yield from chain([piece[surplus:]], pieces)
            return
        surplus -= len(piece)


def _first(count: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield no more than that many bytes."""
    for piece in pieces:
        yield piece[:count]
        count -= len(piece)
        if count < 0:
            return


def _odd(url: str, what: str) -> RemoteError:
    return RemoteError(
        f"Cannot read {url!r}: {what}. Expected a file. Check the URL, or take another remote."
    )


def read_all(pieces: Iterator[bytes], limit: int, name: str) -> bytes:
    """Join a body, but never more of it than a limit.

    Args:
        pieces: Pieces of the body.
        limit: The most bytes.
        name: Name of the file, for the message.

    Raises:
        RemoteError: There is more.
    """
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > limit:
            raise RemoteError(
                f"{name} has more than {limit:,} bytes; expected no more. The remote is damaged, or not what it "
                "claims: take another one."
            )
    return bytes(content)


# --- the remote --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WebSnapshot:
    """Files below a URL, and the index as it was when it was read. See `qeff_zoo.hub.remotes.protocol.Snapshot`.

    Args:
        url: URL of the remote, with its commit if it has commits.
        index: Index of the remote.
        base: Base URL of its files.
    """

    url: str
    index: Index
    base: str

    def read(self, path: str, *, limit: int) -> bytes:
        def attempt() -> bytes:
            with self.stream(path) as pieces:
                return read_all(pieces, limit, f"{path!r} of {self.url!r}")

        return retried(attempt)

    @contextmanager
    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        require_safe(path, self.url)
        url = f"{self.base}/{quote(path)}"
        with get(url, offset=offset, end=end, credentials=self._credentials) as answer:
            if answer.status == NOT_FOUND:
                raise RemoteError(
                    f"{self.url!r} has no {path!r}; expected what its index lists. Publish it again."
                )
            yield answer.pieces

    def _credentials(self, url: str) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class WebRemote:
    """A static web server with packages. See `qeff_zoo.hub.remotes.protocol.Remote`.

    Args:
        url: URL as the user wrote it.
        base: Base URL of its files.
        read_only: Nothing can be published by HTTP.
    """

    url: str
    base: str
    read_only: bool = True

    def snapshot(self, *, offline: bool = False) -> WebSnapshot | None:
        if offline := offline or is_offline():
            index: FetchedIndex | None = index_cache.offline_index(self.url)
        else:
            index = index_cache.newest(self.url, self._fetch)
        if index is None:
            return None
        snapshot = WebSnapshot(self.url, index.index, self.base)
        return replace(snapshot, index=reading(self.url, snapshot, offline=offline))

    def _fetch(self, before: FetchedIndex | None) -> FetchedIndex | None:
        return retried(lambda: self._request_index(before))

    def _request_index(self, before: FetchedIndex | None) -> FetchedIndex | None:
        with get(f"{self.base}/{INDEX_NAME}", etag=before.etag if before else "") as answer:
            return read_index(answer, before, self.url)


def read_index(answer: Answer, before: FetchedIndex | None, url: str) -> FetchedIndex | None:
    """Parse a server's response to the request for the root of an index.

    Args:
        answer: To a request with the etag of `before`.
        before: Cached index.
        url: URL of the remote.
    """
    if answer.status == NOT_FOUND:
        return None
    if before and answer.status == NOT_MODIFIED:
        # The index of the commit seen then is the index now, whether or not the answer names a commit.
        return FetchedIndex(
            before.content, before.index, before.etag, answer.commit or before.commit
        )
    content = read_all(answer.pieces, INDEX_LIMIT, f"The index of {url!r}")
    return FetchedIndex(content, decode(content), answer.etag, answer.commit)
