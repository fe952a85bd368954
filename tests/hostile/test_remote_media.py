# SPDX-License-Identifier: Apache-2.0
"""Hosts that images are fetched from: slow in any place, or at an address that is public by its looks alone."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qeff_zoo.errors import MediaError
from qeff_zoo.media import fetching
from qeff_zoo.media.fetching import fetch_media
from qeff_zoo.media.images import ImageLimits

LIMITS = ImageLimits(seconds=0.6)
#: Sent before a server begins to send single bytes.
PLACES = {
    "status": b"",
    "header": b"HTTP/1.1 200 OK\r\nX-A: ",
    "headers": b"HTTP/1.1 200 OK\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
}


@contextmanager
def dribbling(first: bytes, *, handshake: bool = False) -> Iterator[str]:
    """Run a server that sends bytes for as long as somebody reads them; give its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                try:
                    client.sendall(first)
                    for _ in range(400):  # at most forty seconds, so that no failure hangs
                        client.sendall(b"\x16" if handshake else b"1")
                        time.sleep(0.1)
                except OSError:
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        scheme = "https" if handshake else "http"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/a.png"
        thread.join(20)
        assert not thread.is_alive()  # its client has left


@pytest.mark.parametrize("place", PLACES)
def test_one_deadline_holds_wherever_a_server_is_slow(place: str) -> None:
    begun = time.monotonic()
    with dribbling(PLACES[place]) as url, pytest.raises(MediaError, match="Cannot fetch"):
        fetch_media(url, LIMITS)
    assert time.monotonic() - begun < 8  # ten times the limit on a busy machine, and not a hundred


def test_a_slow_handshake_is_cut_off_too() -> None:
    begun = time.monotonic()
    # A record of TLS as long as it may be, whose bytes come one by one.
    with (
        dribbling(b"\x16\x03\x03\x40\x00", handshake=True) as url,
        pytest.raises(MediaError, match="Cannot fetch"),
    ):
        fetch_media(url, LIMITS)
    assert time.monotonic() - begun < 8


def test_a_slow_look_up_is_cut_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, gate = socket.getaddrinfo, threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: gate.wait(20) and looked(*a, **k))
    begun = time.monotonic()
    with pytest.raises(MediaError, match=r"'pictures\.example' was not found in 0\.\d+ seconds"):
        fetch_media("https://pictures.example/a.png", LIMITS, hosts=["pictures.example"])
    assert time.monotonic() - begun < 8
    gate.set()


def test_a_deadline_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with dribbling(PLACES["header"]) as url, pytest.raises(MediaError, match="longer than allowed"):
        fetch_media(url, LIMITS)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    "address",
    [
        *("fec0::1", "feff::1", "::ffff:0:127.0.0.1", "::ffff:0:a00:1", "168.63.129.16", "::ffff:168.63.129.16"),
        *("64:ff9b::168.63.129.16", "2002:a83f:8110::1", "::ffff:0:168.63.129.16", "5f00::1", "3fff::1"),
        *("2600::5efe:127.0.0.1", "2600::200:5efe:10.0.0.1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "4000::1"),
        *("64:ff9b:1::1", "ff0e::1", "fe80::1", "fc00::1", "100::1", "2001:db8::1", "::", "255.255.255.255"),
        *("192.0.0.192", "198.18.0.1", "240.0.0.1"),
    ],
)  # fmt: skip
def test_no_form_of_a_private_address_is_public(address: str) -> None:
    assert not fetching._is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "168.63.129.15", "2606:4700::1111", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8", "2002:808:808::1",
     "2600::5efe:8.8.8.8"],
)  # fmt: skip
def test_addresses_of_the_internet_are(address: str) -> None:
    assert fetching._is_public(address)
