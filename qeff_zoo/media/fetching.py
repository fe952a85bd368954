# SPDX-License-Identifier: Apache-2.0
"""Download of the file of an image or video from its URL: only at a user's request, and within limits.

A server downloads for its clients only from hosts that its operator named, and never from a private address: each
host is resolved once, and the connection goes to the address that was checked.
"""

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from qeff_zoo.checkpoint.hub_errors import http_error
from qeff_zoo.errors import MediaError
from qeff_zoo.media.images import LIMITS, ImageLimits
from qeff_zoo.settings import offline
from qeff_zoo.terminal.sanitize import shortened

_PORTS = {"http": 80, "https": 443}
#: A host name or an address, with an optional port; no user and no password, which would be sent along.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?")
#: The form in which a client sends each kind of file itself.
DATA = {"image": "data:image/…;base64,…", "video": "data:video/…;base64,…"}
_LONGEST_URL = 8192
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
#: Networks of IPv6 with an IPv4 address in the last 32 bits: mapped, translated, and compatible addresses.
_TRANSLATED = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "::/96"))
)
#: The public part of IPv6; the rest is local or not assigned.
_GLOBAL = ipaddress.IPv6Network("2000::/3")
#: Counted as global by versions of Python that are older than this network.
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
#: The start of the interface identifier in addresses that end with an IPv4 address.
_ISATAP = 0x00005EFE, 0x02005EFE
#: Addresses that look public but respond only inside of a cloud, with its secrets: Azure's, Oracle's.
_OF_CLOUDS = tuple(map(ipaddress.IPv4Network, ("168.63.129.16/32", "192.0.0.0/24")))


def is_url(text: str) -> bool:
    """Return whether a text is a URL that can be fetched, and not a path."""
    return text.partition("://")[0].lower() in _PORTS and "://" in text


def fetch_media(
    url: str,
    limits: ImageLimits = LIMITS,
    *,
    hosts: Collection[str] | None = None,
    noun: str = "image",
) -> bytes:
    """Download the file of an image or video. A few redirects are followed, but none from https to http.

    Args:
        url: The URL, http or https.
        limits: Maximum size and download time.
        hosts: The allowed hosts, `HOST` or `HOST:PORT`, and only at public addresses; None for any.
        noun: The kind of file in an error: "image" or "video".

    Raises:
        MediaError: If the URL is not allowed, or does not return a file within the limits.
    """
    name = f"the {noun} at {shortened(url)!r}"
    if offline():
        raise MediaError(
            f"Cannot fetch {name}: QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set. Expected the path of a file. Download it "
            "where there is a network, or unset them."
        )
    with _Deadline(limits.seconds) as deadline:
        return _follow(url, limits, hosts, name, deadline)


class _Deadline:
    """Deadline of a download and its redirects, at which the connection is shut down, even in the middle of a transfer.

    A socket's own timeout restarts with each byte that a server sends.

    Args:
        seconds: Time for the whole download.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._connection: socket.socket | None = None
        self.expired = False

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._connection:
            self._connection.close()

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._end - time.monotonic()

    def trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Take a connection from the client that opens it, before TLS, as a second handle."""
        if event.endswith("connect_tcp.complete"):
            if self._connection:
                self._connection.close()
            self._connection = details["return_value"].get_extra_info("socket").dup()
            if self.expired:
                self._expire()

    def _expire(self) -> None:
        self.expired = True
        if self._connection:
            with suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)


def _follow(
    url: str,
    limits: ImageLimits,
    hosts: Collection[str] | None,
    name: str,
    deadline: _Deadline,
) -> bytes:
    for _ in range(_MOST_REDIRECTS + 1):
        parts = _parts(url, name)
        address = None if hosts is None else _public_address(parts, hosts, name, deadline)
        if deadline.left <= 0:
            raise MediaError(
                f"Cannot fetch {name}: its redirects took longer than {limits.seconds:g} seconds. Expected a file. "
                "Give its own URL."
            )
        with _answer(parts, address, name, deadline) as response:
            if response.status_code not in _REDIRECTS:
                return _read(response, name, limits, deadline)
            url = urljoin(url, response.headers.get("location", ""))
        if parts.scheme == "https" and urlsplit(url).scheme == "http":
            raise MediaError(
                f"Cannot fetch {name}: it leads to {shortened(url)!r}, where anybody on the way may change what "
                "arrives. Expected https all the way. Give the URL of the file itself."
            )
    raise MediaError(
        f"Cannot fetch {name}: it is redirected more than {_MOST_REDIRECTS} times. Expected a file. Give its own URL."
    )


def _parts(url: str, name: str) -> SplitResult:
    """Return the parts of a URL that can be fetched."""
    try:
        parts = urlsplit(url)
        written = url.isascii() and url.isprintable() and len(url) <= _LONGEST_URL
        if written and parts.scheme in _PORTS and _HOST.fullmatch(parts.netloc) and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise MediaError(
        f"Cannot fetch {name}: {shortened(url)!r} is no URL of a file on a web server. Expected https://HOST/PATH, "
        "without a user or a password. Correct it, or give the path of a file."
    )


def _public_address(
    parts: SplitResult, hosts: Collection[str], name: str, deadline: _Deadline
) -> str:
    """Return the address of an allowed host."""
    host = str(parts.hostname)
    if parts.netloc.lower() not in hosts:
        allowed = ", ".join(sorted(hosts)) or "none"
        raise MediaError(
            f"Cannot fetch {name}: host {shortened(parts.netloc)!r} is not one that may be asked ({allowed}). Expected "
            f"one of those. {_send_itself(name)}"
        )
    try:
        answer = _looked_up(host, parts.port or _PORTS[parts.scheme], deadline.left)
    except OSError as error:
        raise _failed(name, error) from error
    addresses = [str(one[4][0]) for one in answer]
    if not addresses or not all(map(_is_public, addresses)):
        raise MediaError(
            f"Cannot fetch {name}: {host!r} is at a private address. Expected a public one. "
            f"{_send_itself(name)}"
        )
    return addresses[0]


def _looked_up(host: str, port: int, seconds: float) -> Any:
    """Resolve a host within a time limit; the resolver's thread ends when its own timeout expires.

    Raises:
        OSError: If there is no such host, or no response in time.
    """
    answers: SimpleQueue[Any] = SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # UnicodeError for a label of 64 characters
            answers.put(OSError(str(error)))

    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=max(seconds, 0))
    except Empty:
        raise TimeoutError(f"{host!r} was not found in {seconds:.3g} seconds") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _send_itself(name: str) -> str:
    noun = name.split()[1]
    return f"Send the {noun} itself, as {DATA[noun]}"


def _is_public(address: str) -> bool:
    """Return whether an address is public, and so is the IPv4 address embedded in it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.sixtofour
        is_isatap = int(ip) >> 32 & 0xFFFFFFFF in _ISATAP
        is_translated = any(ip in network for network in _TRANSLATED)
        if is_translated or is_isatap:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None and not _is_public(str(inner)):
            return False
        return is_translated or (ip.is_global and ip in _GLOBAL and ip not in _DOCUMENTATION)
    of_cloud = any(ip in network for network in _OF_CLOUDS)
    return ip.is_global and not ip.is_multicast and not of_cloud


@contextmanager
def _answer(
    parts: SplitResult, address: str | None, name: str, deadline: _Deadline
) -> Iterator[Any]:
    """Request a file, at a given address if there is one, as if the host had been resolved to it."""
    from huggingface_hub import get_session

    # Uncompressed bytes, which cannot grow when unpacked. And a separate connection: another host may have the same
    # address and another certificate.
    headers = {"accept-encoding": "identity", "accept": "image/*, video/*", "connection": "close"}
    extensions: dict[str, Any] = {"trace": deadline.trace}
    url = parts._replace(fragment="")
    if address is not None:
        headers["host"] = parts.netloc
        extensions["sni_hostname"] = parts.hostname
        port = f":{parts.port}" if parts.port else ""
        url = url._replace(netloc=(f"[{address}]" if ":" in address else address) + port)
    try:
        with get_session().stream(
            "GET",
            url.geturl(),
            headers=headers,
            timeout=max(deadline.left, 0.001),
            follow_redirects=False,
            extensions=extensions,
        ) as response:
            yield response
    except (http_error(), OSError) as error:
        late = "it took longer than allowed" if deadline.expired else error
        raise _failed(name, late) from error


def _read(response: Any, name: str, limits: ImageLimits, deadline: _Deadline) -> bytes:
    if response.status_code != 200:
        raise MediaError(
            f"Cannot fetch {name}: its server answers with status {response.status_code}. Expected 200 and a file. "
            "Open the URL in a browser to see why, or give the path of a file."
        )
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if len(content) > limits.file_bytes:
            raise MediaError(
                f"Cannot fetch {name}: it has more than {limits.file_bytes:,} bytes. Expected no more. Save it smaller."
            )
        if deadline.left < 0:
            break
    # Without a length, the body of a connection that is shut down looks complete.
    if deadline.left < 0 or deadline.expired:
        raise MediaError(
            f"Cannot fetch {name}: {len(content):,} bytes came in {limits.seconds:g} seconds. Expected all of it. "
            "Download it yourself, and give the path of the file."
        )
    return bytes(content)


def _failed(name: str, error: object) -> MediaError:
    what = str(error) or type(error).__name__
    return MediaError(
        f"Cannot fetch {name}: {what}. Expected a server that answers. Check the URL and the connection."
    )
