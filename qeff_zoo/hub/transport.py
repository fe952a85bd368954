# SPDX-License-Identifier: Apache-2.0
"""HTTP as remotes need it: one GET, redirects followed, a token that never leaves the Hub, errors in our words.

In: a URL. Out: an `Answer`, of which the body is read in pieces. Goes through huggingface_hub's client, imported when
it is used, so that proxies and certificates mean what they mean everywhere.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from urllib.parse import urljoin, urlsplit

from qeff_zoo.checkpoint.hub_errors import http_error
from qeff_zoo.errors import RemoteError
from qeff_zoo.settings import offline

NOT_MODIFIED, NOT_FOUND = 304, 404
#: The Hub's way to say that a file or a repository is not there; for a private one with 401, so as not to tell.
ABSENT = ("EntryNotFound", "RepoNotFound")
#: Statuses after which the same request may succeed later.
LATER = (408, 425, 429, 500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_TIMEOUT_SECONDS = 30.0
#: What a redirect says of the file that it leads to.
_KEPT = ("x-repo-commit", "x-linked-etag", "x-error-code")


@dataclass(frozen=True)
class Answer:
    """What a server gave.

    Args:
        url: Of the server that gave it, after redirects.
        status: 200, 206, 304 (the file is what was seen before) or 404.
        headers: Lower-case names; some of those of redirects too.
        pieces: The body as it arrives.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes] = field(repr=False)

    @property
    def etag(self) -> str:
        """By which the server knows this content again; "" if it says nothing."""
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
    credentials: Callable[[str], Mapping[str, str]] = lambda _: {},
) -> Iterator[Answer]:
    """Ask for a file.

    Args:
        url: Where it is.
        etag: Of the content that is here; the answer's status is 304 if that is still it.
        offset: The first byte that is wanted. What a server sends from before it is thrown away.
        credentials: From a URL to the headers that its server may see; asked again after each redirect.

    Raises:
        RemoteError: There is no such answer; `retryable` if there may be one later. Also from `pieces`.
    """
    with ExitStack() as stack:
        answer = _follow(stack, url, etag, offset, credentials)
        if answer.status in (200, 206):
            start = _start(answer)
            if start > offset:
                raise _odd(answer.url, f"it sent bytes from {start} on when asked from {offset}")
            pieces = _from(offset - start, answer.pieces)
            answer = Answer(answer.url, answer.status, answer.headers, pieces)
        yield answer


def _follow(
    stack: ExitStack,
    url: str,
    etag: str,
    offset: int,
    credentials: Callable[[str], Mapping[str, str]],
) -> Answer:
    kept: dict[str, str] = {}
    for _ in range(_MOST_REDIRECTS + 1):
        # Bytes as they are: no server may compress them on the way, and Range counts them.
        wanted = {"accept-encoding": "identity", **credentials(url)}
        wanted |= {"if-none-match": etag} if etag else {}
        wanted |= {"range": f"bytes={offset}-"} if offset else {}
        hop = stack.enter_context(ExitStack())
        answer = hop.enter_context(_once(url, wanted))
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
    if offline():
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
        found = {name.lower(): value for name, value in response.headers.items()}
        yield Answer(url, response.status_code, found, _pieces(url, response))


def _pieces(url: str, response: Any) -> Iterator[bytes]:
    with _reaching(url):
        yield from response.iter_raw()


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Say in our words that a server was not reached, or went away."""
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
    target = urljoin(url, location)
    before, after = urlsplit(url).scheme, urlsplit(target).scheme
    if not location or after not in ("http", "https") or (before, after) == ("https", "http"):
        raise _odd(url, f"it leads to {location!r}")
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
    said = answer.headers.get("x-error-message") or code
    message = f"{answer.url!r} was refused with status {status}{f' ({said})' if said else ''}."
    if status in (401, 403):
        advice = "Expected a token with access. Run `hf auth login` or set HF_TOKEN; accept the terms of a gated one."
    elif status in LATER:
        advice = "Expected an answer. Run the command again later."
    else:
        advice = "Expected a file. Check the URL and its revision."
    raise RemoteError(f"{message} {advice}", retryable=status in LATER)


def _start(answer: Answer) -> int:
    """Tell which byte of the file a body begins with."""
    if answer.status == 200:  # the server does not know Range, or does not care
        return 0
    unit, _, place = answer.headers.get("content-range", "").partition(" ")
    first = place.partition("-")[0]
    if unit != "bytes" or not first.isdecimal():
        raise _odd(answer.url, f"it sent a part without saying which: {unit!r} {place!r}")
    return int(first)


def _from(surplus: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Discard that many bytes, then yield the rest."""
    for piece in pieces:
        if surplus < len(piece):
            yield from chain([piece[surplus:]], pieces)
            return
        surplus -= len(piece)


def _odd(url: str, what: str) -> RemoteError:
    return RemoteError(
        f"Cannot read {url!r}: {what}. Expected a file. Check the URL, or take another remote."
    )


def read_all(pieces: Iterator[bytes], limit: int, name: str) -> bytes:
    """Join a body, but never more of it than a limit.

    Args:
        pieces: Of the body.
        limit: The most bytes.
        name: What it is, for the message.

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
