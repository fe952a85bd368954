# SPDX-License-Identifier: Apache-2.0
"""The URL of a picture or video in, the bytes of its file out: only where a user asks for it, and within limits.

What a server fetches for its clients is fetched from hosts that its operator named, and never from a private address:
each host is looked up once, and the connection goes to the address that was checked.
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
#: A name or an address, perhaps a port; no user and no password, which would be sent along.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?")
#: How a client sends each itself.
DATA = {"picture": "data:image/…;base64,…", "video": "data:video/…;base64,…"}
_LONGEST_URL = 8192
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
#: Networks of IPv6 whose addresses are those of IPv4 in their last 32 bits: mapped, translated, and compatible ones.
_TRANSLATED = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "::/96"))
)
#: All that is public of IPv6; the rest is local or not assigned.
_GLOBAL = ipaddress.IPv6Network("2000::/3")
#: Global to versions of Python that are older than it.
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
#: What an interface's id begins with that ends with an address of IPv4.
_ISATAP = 0x00005EFE, 0x02005EFE
#: Addresses that look public, and answer inside of a cloud alone, with its secrets: Azure's, Oracle's.
_OF_CLOUDS = tuple(map(ipaddress.IPv4Network, ("168.63.129.16/32", "192.0.0.0/24")))


def is_url(text: str) -> bool:
    """Tell whether a text is a URL that can be fetched, and no path."""
    return text.partition("://")[0].lower() in _PORTS and "://" in text


def fetch_media(
    url: str,
    limits: ImageLimits = LIMITS,
    *,
    hosts: Collection[str] | None = None,
    noun: str = "picture",
) -> bytes:
    """Fetch the file of a picture or video. A few redirects are followed, but none from https to http.

    Args:
        url: Of http or https.
        limits: How large it may be, and how long it may take.
        hosts: Those that may be asked, `HOST` or `HOST:PORT`, and only at public addresses; None for any.
        noun: What it is, in an error: "picture" or "video".

    Raises:
        MediaError: It may not be fetched, or no file within the limits comes of it.
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
    """The end of an exchange with its redirects, whose connection is shut down then, whatever it waits for.

    A timeout of a socket begins again with each byte that a server sends.

    Args:
        seconds: The time for all of it.
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
        """Seconds until the end."""
        return self._end - time.monotonic()

    def trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Take a connection from the client that opens it, before TLS: a second handle of the same one."""
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
    """Take a URL apart that can be asked for."""
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
    """Return the address of a host that may be asked."""
    host = str(parts.hostname)
    if parts.netloc.lower() not in hosts:
        allowed = ", ".join(sorted(hosts)) or "none"
        raise MediaError(
            f"Cannot fetch {name}: host {shortened(parts.netloc)!r} is not one that may be asked ({allowed}). Expected "
            f"one of those. {_send_itself(name)}"
        )
    try:
        found = _looked_up(host, parts.port or _PORTS[parts.scheme], deadline.left)
    except OSError as error:
        raise _failed(name, error) from error
    addresses = [str(one[4][0]) for one in found]
    if not addresses or not all(map(_is_public, addresses)):
        raise MediaError(
            f"Cannot fetch {name}: {host!r} is at a private address. Expected a public one. "
            f"{_send_itself(name)}"
        )
    return addresses[0]


def _looked_up(host: str, port: int, seconds: float) -> Any:
    """Look up a host, no longer than that; the resolver's own thread ends when it gives up by itself.

    Raises:
        OSError: There is no such host, or no answer in time.
    """
    answers: SimpleQueue[Any] = SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # the latter for a label of 64 characters
            answers.put(OSError(str(error)))

    threading.Thread(target=look_up, daemon=True).start()
    try:
        found = answers.get(timeout=max(seconds, 0))
    except Empty:
        raise TimeoutError(f"{host!r} was not found in {seconds:.3g} seconds") from None
    if isinstance(found, OSError):
        raise found
    return found


def _send_itself(name: str) -> str:
    noun = name.split()[1]
    return f"Send the {noun} itself, as {DATA[noun]}"


def _is_public(address: str) -> bool:
    """Return whether an address is one of the internet, and so is an address of IPv4 in it."""
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
    """Ask for a file, at a certain address where there is one, as if the host had been looked up there."""
    from huggingface_hub import get_session

    # Bytes as they are: nothing that grows when it is unpacked. And a connection of its own: another host may have the
    # same address, and another certificate.
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
    # A connection that is shut down ends a body without a length.
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
