# SPDX-License-Identifier: Apache-2.0
"""A server that gives a byte now and then does not hold a pull for ever."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from local_hub import LocalHub

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.remotes import http, open_remote
from qeff_zoo.hub.remotes.hub_api import HubRemote


@contextmanager
def dribbling(first: bytes, seconds: float) -> Iterator[str]:
    """Serve bodies that begin as given, and go on for ever with a byte each time so many seconds have passed."""
    server, closed = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = server.accept()
                threading.Thread(target=dribble, args=[client], daemon=True).start()

    def dribble(client: socket.socket) -> None:
        with client, suppress(OSError):  # the client has left
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + first)
            while not closed.wait(seconds):
                client.sendall(b"x")

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        closed.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_SECONDS", 0.3)


@pytest.mark.parametrize("first", [b"", b"x" * 200])
def test_an_index_that_dribbles_is_given_up(home: Path, first: bytes) -> None:
    begun = time.monotonic()
    with (
        dribbling(first, 0.02) as url,
        pytest.raises(RemoteError, match=r"bytes came in \d seconds\. Expected 1,024") as caught,
    ):
        open_remote(url).snapshot()
    assert not caught.value.retryable  # or it would be asked five times
    assert time.monotonic() - begun < 5


def test_a_pause_of_ours_is_not_the_servers(home: Path) -> None:
    with dribbling(b"x" * 200_000, 3600) as url, http.get(url) as answer:
        size = 0
        for piece in answer.pieces:
            size += len(piece)
            time.sleep(0.15)
            if size == 200_000:
                break
    assert size == 200_000


# --- servers that say when to come again ---------------------------------------------------------


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note the pauses between attempts, and make none."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [("7", 7, 7), ("100000", 60, 60), ("Sun, 06 Nov 1994 08:49:37 GMT", 0, 1),
     ("Fri, 31 Dec 9999 23:59:59 GMT", 60, 60), ("soon", 0, 1), ("-5", 0, 1), ("9" * 400, 60, 60)],
)  # fmt: skip
@pytest.mark.parametrize("status", [429, 503])
def test_a_read_is_repeated_when_the_server_requests_it(
    hub: LocalHub,
    home: Path,
    slept: list[float],
    message: str,
    least: float,
    most: float,
    status: int,
) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(Index())})
    hub.fault("GET", INDEX_NAME, status=status, headers={"Retry-After": message})
    assert open_remote("hf://acme/zoo").snapshot() is not None
    assert len(slept) == 1
    assert least <= slept[0] <= most


def test_a_commit_is_repeated_when_the_server_requests_it(
    alice: LocalHub, home: Path, slept: list[float]
) -> None:
    alice.commit("acme/zoo", {INDEX_NAME: encode(Index())})
    alice.fault("POST", "/commit/", status=429, headers={"Retry-After": "7"})
    remote = open_remote("hf://acme/zoo")
    assert isinstance(remote, HubRemote)
    large = home.parent / "large.bin"
    large.write_bytes(b"content")
    remote.commit({"large.bin": large}, lambda index: index, "a file")
    assert 7 in slept
    assert alice.files("acme/zoo")["large.bin"] == b"content"
