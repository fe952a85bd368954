# SPDX-License-Identifier: Apache-2.0
"""What anybody may send to the port of a prefill server: no traceback, no thread, and no word without the key."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fixtures_handoff import serving, two_of
from fixtures_serving import wait_until

from qeff_zoo.errors import HandoffError
from qeff_zoo.runtime.engine import admission, disaggregated, wire
from qeff_zoo.runtime.engine.admission import greeting
from qeff_zoo.runtime.engine.disaggregated import Prefills

KEY = "secret"
DEEP = b"[" * 100_000


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a thread ends with an error; wait less for clients."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(admission, "PATIENCE", 1.0)
    monkeypatch.setattr(disaggregated, "PATIENCE", 1.0)
    yield
    assert not failed


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), 20)
    client.settimeout(20)
    return client


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


def ended(client: socket.socket) -> bool:
    """Return whether a server hangs up in time."""
    with suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def works(address: str, session: Any) -> bool:
    return bool(Prefills(session, [address], api_key=KEY).run([1]).logits.size)


@pytest.mark.parametrize(
    "sent",
    [
        *(b"", b"\0", b"\0" * 8, b"\xff" * 8, framed(b"{")[:-1], framed(DEEP[:4096]), framed(b"[]")),
        *(framed(b'{"version": 1' + b"0" * 4000), framed(b"\xff"), framed(b'{"key": {}}')),
        framed(json.dumps({"version": [1] * 99}).encode()),
        framed(json.dumps({"version": wire.VERSION, "key": "\ud800"}).encode()),
    ],
)  # fmt: skip
def test_no_greeting_leaves_a_trace(sent: bytes, tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, KEY) as address:
        with dial(address) as client:
            client.sendall(sent)
        assert works(address, second)


def sized(kind: object = "float32", shape: object = (2,), **more: Any) -> dict[str, Any]:
    return {"arrays": [{"pixel_values": [kind, shape]}], **more}


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (DEEP, "no JSON"),
        (b'{"a":' * 100_000, "no JSON"),
        (sized(shape=[1] * 100), "says of its arrays"),
        (sized(shape=[float("inf")]), "says of its arrays"),
        (sized(shape=[10**400]), "says of its arrays"),
        (sized(shape=[-1]), "says of its arrays"),
        (sized(shape="12"), "says of its arrays"),
        (sized(kind="(2,f4"), "says of its arrays"),
        (sized(kind=["a", "b"]), "says of its arrays"),
        (sized(kind="O"), "says of its arrays"),
        (sized(kind="f4,f4"), "says of its arrays"),
        (sized(shape=[1 << 20] * 4), "has arrays of"),
        (sized(shape=[0, 1 << 30, 1 << 30]), "has arrays of"),
        ({"arrays": [{}] * 10 + [{str(n): ["bool", []] for n in range(5000)}]}, "at most 4,096"),
        ({"arrays": 5}, "says of its arrays"),
        ({"arrays": [5]}, "says of its arrays"),
        ({"prompt": [10**30]}, "expected"),
        ({"prompt": [-1]}, "expected"),
        ({"prompt": [True]}, "expected"),
        ({"prompt": {}, "grids": 5}, "expected"),
        ({}, "reads no images"),
        ({"terms": 5, "prompt": [1]}, "another model"),
    ],
)
def test_no_message_leaves_a_trace(sent: Any, problem: str, tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    if isinstance(sent, dict):
        head = {"version": wire.VERSION, "terms": disaggregated.terms_of(second)}
        sent = json.dumps({**head, **sent}).encode()
    with serving(first, KEY) as address:
        with dial(address) as client:
            wire.send(client, greeting(KEY))
            client.sendall(framed(sent))
            assert problem in wire.receive(client)["error"]
        assert works(address, second)


def test_a_client_that_leaves_at_any_byte_leaves_no_trace(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    whole = wire.packed(greeting(KEY)) + wire.packed(
        {"version": wire.VERSION, "terms": disaggregated.terms_of(second), **sized()}
    )
    with serving(first, KEY) as address:
        for length in range(0, len(whole), 17):
            with dial(address) as client:
                client.sendall(whole[:length])
        assert works(address, second)


def test_a_missing_key_reveals_nothing(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    digests = disaggregated.terms_of(first).values()
    with serving(first, KEY) as address:
        for key in (None, "", "public", KEY[:-1], [KEY], {"secret": 1}):
            with dial(address) as client:
                wire.send(client, {"version": wire.VERSION, "key": key, "terms": {}})
                wire.send(client, {"version": wire.VERSION, "terms": {}, "prompt": [1]})
                message = wire.receive(client)
                assert "another API key" in message.pop("error")
                assert message == {"version": wire.VERSION}
                assert not any(digest[:12] in str(message) for digest in digests)
        assert works(address, second)


@contextmanager
def idle(address: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    clients = [dial(address) for _ in range(count)]
    try:
        for client in clients:
            with suppress(ConnectionError):  # hung up on already
                client.sendall(sent)
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "sent", [b"", b"\0\0\0", framed(b"{}" * 40)[:30]], ids=["nothing", "half", "most"]
)
def test_who_waits_takes_no_thread_and_no_turn(sent: bytes, tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, KEY) as address:
        before = threading.active_count()
        with idle(address, 3 * admission.MOST_WAITING, sent) as clients:
            assert threading.active_count() <= before
            begun = time.monotonic()
            assert works(address, second)
            assert all(map(ended, clients))
            assert time.monotonic() - begun < 15


def test_a_greeting_that_dribbles_and_a_refusal_that_is_not_read_end(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, KEY) as address, dial(address) as slow, dial(address) as deaf:
        wire.send(deaf, greeting("public"))
        end = time.monotonic() + 20
        for client, piece in ((slow, b"\0"), (deaf, bytes(4096))):
            with suppress(ConnectionError):
                while time.monotonic() < end:
                    client.sendall(piece)
                    time.sleep(0.05)
        assert time.monotonic() < end
        assert works(address, second)


def attended() -> int:
    return sum("(_attend)" in one.name for one in threading.enumerate())


def test_clients_with_the_key_are_bounded_in_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disaggregated, "_MOST_CLIENTS", 2)
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, KEY) as address:
        with idle(address, 2, wire.packed(greeting(KEY))):
            wait_until(lambda: attended() == 2)
            with pytest.raises(HandoffError, match="answers 2 clients already"):
                works(address, second)
        wait_until(lambda: attended() == 0)
        assert works(address, second)


def test_clients_with_the_key_are_bounded_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is hung up on finds its place free at once."""
    monkeypatch.setattr(disaggregated, "_MOST_CLIENTS", 1)
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, KEY) as address:
        monkeypatch.setattr(disaggregated, "_ANSWER", 0.5)
        with idle(address, 1, wire.packed(greeting(KEY))) as clients:
            assert all(map(ended, clients))
            monkeypatch.setattr(disaggregated, "_ANSWER", 60.0)
            assert works(address, second)
