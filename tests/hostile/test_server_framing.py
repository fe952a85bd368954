# SPDX-License-Identifier: Apache-2.0
"""Requests whose framing costs more than their content: tiny chunks, trailers, pipelines, other protocols."""

import json
import threading
import time
from contextlib import closing

import pytest
from fixtures_server_connections import rest
from fixtures_serving import MODEL, active, dial, wait_until

from qeff_zoo.runtime import Engine

TOKENIZE = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": MODEL, "prompt": "class collections."}).encode()
CHUNKED = TOKENIZE + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def chunked(body: bytes, size: int, extension: bytes = b"") -> bytes:
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(one), extension, one) for one in pieces)


def answer(url: str, sent: bytes) -> bytes:
    with closing(dial(url)) as opened:
        try:
            opened.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            return b""
        return rest(opened)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_small_body_may_have_any_chunks(url: str, size: int) -> None:
    assert answer(url, CHUNKED + chunked(BODY, size) + b"0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "framing",
    [
        chunked(b" " * 2_000_000, 1),
        chunked(b" " * 20, 20, b";a=" + b"a" * 200_000),
        chunked(b" " * 200_000, 1, b";a=" + b"a" * 20),
        b"0\r\n" + b"A: b\r\n" * 100_000,
        b"0\r\nA: " + b"b" * 200_000,
    ],
    ids=["bytes", "extension", "extensions", "trailers", "trailer"],
)
def test_framing_beyond_its_limit_is_refused(url: str, framing: bytes) -> None:
    begin = time.process_time()
    found = answer(url, CHUNKED + framing + b"0\r\n\r\n")
    assert not found.startswith(b"HTTP/1.1 200 ")
    assert time.process_time() - begin < 1  # h11 took 22 seconds for the first of them


def test_a_large_body_may_have_chunks_of_ten_bytes(url: str) -> None:
    padded = BODY + b" " * 1_000_000
    assert answer(url, CHUNKED + chunked(padded, 10) + b"0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("head", [b"", b"Host: a\r\nHost: b\r\n"], ids=["none", "two"])
def test_a_request_has_one_host(url: str, head: bytes) -> None:
    found = answer(url, b"GET /health HTTP/1.1\r\n" + head + b"\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"Host" in found


def test_an_upgrade_is_ignored_as_are_those_of_java(url: str) -> None:
    """java.net.http offers HTTP/2 in every request to a server without TLS, beside its body."""
    upgrade = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAI\r\n"
    )
    framed = upgrade + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    last = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    found = answer(url, (TOKENIZE + framed) * 2 + last)
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert found.count(b'"tokens"') == 2


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
    ],
)
def test_other_protocols_are_refused(url: str, line: bytes) -> None:
    assert answer(url, line).startswith(b"HTTP/1.1 400 ")


def test_pipelined_requests_are_few(url: str) -> None:
    get = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    last = get[:-2] + b"Connection: close\r\n\r\n"
    assert answer(url, get * 9 + last).count(b"HTTP/1.1 200 ") == 10
    assert answer(url, get * 100_000).count(b"HTTP/1.1 200 ") < 1000


def test_a_client_that_leaves_ends_the_first_of_its_requests_too(
    url: str, engine: Engine, paused: threading.Event
) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 100, "ignore_eos": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    before = engine.stats().finished.get("cancelled", 0)
    with closing(dial(url)) as opened:
        opened.sendall(f"{head}{body}GET /health HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        wait_until(lambda: active(engine) == (1, 0))
    time.sleep(0.1)  # for the server to notice it
    paused.set()
    wait_until(lambda: active(engine) == (0, 0))
    assert engine.stats().finished.get("cancelled", 0) == before + 1
