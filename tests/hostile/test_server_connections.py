# SPDX-License-Identifier: Apache-2.0
"""Hostile connections: kept open, with two different lengths, with endless headers, or never read."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from fixtures_server_connections import rest
from fixtures_serving import MODEL, PROMPT, TIMEOUT, active, dial, post, running, wait_until

from qeff_zoo import serving
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.server import connection

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give requests a second to be sent."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1.0)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        HEALTH,
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["nothing", "line", "head", "body", "chunks"],
)
@pytest.mark.usefixtures("hasty")
def test_a_connection_that_sends_half_a_request_ends(url: str, sent: bytes) -> None:
    with closing(dial(url)) as opened:
        opened.sendall(sent)
        assert rest(opened).startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("hasty")
def test_a_connection_that_sends_half_of_its_second_request_ends(url: str) -> None:
    with closing(dial(url)) as opened:
        opened.sendall(HEALTH + b"\r\n")
        assert opened.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        opened.sendall(HEALTH)
        assert b"HTTP/1.1 408 " in rest(opened)


@pytest.mark.usefixtures("hasty")
def test_a_complete_request_may_take_longer_than_the_limit_on_sending(
    url: str, engine: Engine, paused: threading.Event
) -> None:
    body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 3}).encode()
    with ThreadPoolExecutor() as clients:
        requested = clients.submit(post, url, "completions", body)
        wait_until(lambda: active(engine) == (1, 0))
        for _ in range(2):  # each waits for the limit on sending, after the request had begun
            with closing(dial(url)) as opened:
                rest(opened)
        assert not requested.done()
        paused.set()
        assert requested.result(TIMEOUT)[0] == 200


def test_clients_that_are_gone_are_noticed() -> None:
    with serving.bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as _, listener.accept()[0] as taken:
            assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


@pytest.mark.parametrize("key", [None, "sesame"])
def test_two_lengths_are_refused_and_the_connection_ends(engine: Engine, key: str | None) -> None:
    """Request smuggling: a proxy and a server that choose different lengths see different requests."""
    body = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(body)
    with running(engine, api_keys=[key] if key else []) as url, closing(dial(url)) as opened:
        opened.sendall(head + body)
        found = rest(opened)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1
    assert b"Transfer-Encoding" in found


@pytest.mark.parametrize(
    "headers",
    [b"X-A: " + b"a" * 60_000 + b"\r\n", b"X-A: a\r\n" * 7000, b"X-A: a\r\n" * 500_000],
    ids=["long", "many", "endless"],
)
def test_headers_are_bounded(url: str, headers: bytes) -> None:
    with closing(dial(url)) as opened:
        try:
            opened.sendall(HEALTH + headers + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # refused before all of it was sent
        assert not rest(opened).startswith(b"HTTP/1.1 200 ")
    with closing(dial(url)) as opened:
        opened.sendall(HEALTH + b"X-A: " + b"a" * 8000 + b"\r\nConnection: close\r\n\r\n")
        assert rest(opened).startswith(b"HTTP/1.1 200 ")


def test_health_and_metrics_answer_head_requests(url: str) -> None:
    place = urlsplit(url)
    assert place.hostname is not None
    with closing(http.client.HTTPConnection(place.hostname, place.port, timeout=TIMEOUT)) as opened:
        for path in ("/health", "/metrics"):
            for method, has_body in (("HEAD", False), ("GET", True)):
                opened.request(method, path)
                answer = opened.getresponse()
                assert (answer.status, bool(answer.read())) == (200, has_body)


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_nothing_is_dropped(
    url: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its response in memory, and its model from being unloaded; slow readers may take their time."""
    monkeypatch.setattr(connection, "STALLED_SECONDS", 1.0)
    body = json.dumps({"model": MODEL, "tokens": [2] * 1_000_000}).encode()
    head = f"POST /detokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with closing(socket.socket()) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place = urlsplit(url)
        opened.connect((place.hostname, place.port))
        opened.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        opened.settimeout(TIMEOUT)
        first = opened.recv(1000)  # the server writes, and more than any buffer of the system takes
        length = int(first.partition(b"content-length: ")[2].split()[0])
        read = len(first)
        for _ in range(8):
            time.sleep(0.25)
            end = read + (1_500_000 if reads else 0)
            while read < end:
                read += len(opened.recv(1 << 16))
        read += len(rest(opened))
    assert length > 10_000_000
    assert (read > length) == reads
