# SPDX-License-Identifier: Apache-2.0
"""Images of the web: fetched where that is asked for, within limits, and by servers from public hosts alone."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from qeff_zoo.errors import MediaError
from qeff_zoo.media import fetching
from qeff_zoo.media.fetching import fetch_media, is_url
from qeff_zoo.media.images import ImageLimits

IMAGE = b"a picture" * 100


class Handler(BaseHTTPRequestHandler):
    hosts: list[str]

    def do_GET(self) -> None:
        self.hosts.append(self.headers["host"])
        if self.path == "/loop":
            return self._lead("/loop")
        if self.path.startswith("/to/"):
            return self._lead(self.path.removeprefix("/to/"))
        if self.path == "/absent":
            self.send_error(404)
            return None
        self.send_response(200)
        self.end_headers()
        slow = self.path == "/slow"
        for byte in IMAGE:
            self.wfile.write(bytes([byte]))
            sleep(0.05 if slow else 0)
        return None

    def _lead(self, where: str) -> None:
        self.send_response(302)
        self.send_header("location", where)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    hosts: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hosts": hosts}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave when they have seen enough
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", hosts
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_image_is_fetched_through_a_few_redirects(server: tuple[str, list[str]]) -> None:
    url, _ = server
    assert fetch_media(f"{url}/photo.png") == IMAGE
    assert fetch_media(f"{url}/to/{url}/to//photo.png") == IMAGE


@pytest.mark.parametrize(
    ("path", "limits", "problem"),
    [
        ("/absent", {}, "status 404"),
        ("/loop", {}, "redirected more than 5 times"),
        ("/to/file:///etc/passwd", {}, "'file:///etc/passwd' is no URL"),
        ("/to/http://user:secret@host/", {}, "without a user or a password"),
        ("/photo.png", {"file_bytes": 100}, "more than 100 bytes"),
        ("/slow", {"seconds": 0.2}, "came in 0.2 seconds"),
    ],
)
def test_what_is_not_fetched(
    path: str, limits: dict[str, Any], problem: str, server: tuple[str, list[str]]
) -> None:
    with pytest.raises(MediaError, match=problem):
        fetch_media(server[0] + path, ImageLimits(**limits))


@pytest.mark.parametrize(
    "url", ["ftp://host/a.png", "http://", "http:///a.png", "http://a b/", "https://h/\n", "http://h:0/", "http://[1/"]
)  # fmt: skip
def test_invalid_urls_of_images(url: str) -> None:
    with pytest.raises(MediaError, match="Expected https://HOST/PATH"):
        fetch_media(url)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(MediaError, match="Expected a server that answers"):
            fetch_media(f"http://127.0.0.1:{free.getsockname()[1]}/a.png")


def test_https_leads_to_no_http(monkeypatch: pytest.MonkeyPatch) -> None:
    class Redirect:
        status_code, headers = 302, {"location": "http://127.0.0.1/a.png"}

    @contextmanager
    def answer(*_: Any) -> Iterator[Any]:
        yield Redirect()

    monkeypatch.setattr(fetching, "_answer", answer)
    with pytest.raises(MediaError, match="https all the way"):
        fetch_media("https://example.com/a.png")


def test_nothing_is_fetched_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    with pytest.raises(MediaError, match="QEFF_ZOO_OFFLINE"):
        fetch_media("http://127.0.0.1/a.png")


def test_a_url_is_no_path() -> None:
    assert [is_url(one) for one in ("http://h/a", "HTTPS://h", "http", "a.png", "c:/a", "file:///a")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


# --- what a server fetches for its clients -------------------------------------------------------


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Have each look-up of a host give the next of these addresses; return the hosts that were looked up."""
    requested, left = list[str](), list(answers)

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host.replace(".", "").isdecimal():
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        requested.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (left.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return requested


def test_a_host_is_resolved_once_and_requested_at_that_address(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look-up could give another address, which nobody has checked."""
    url, hosts = server
    port = url.rpartition(":")[2]
    requested = resolve(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(fetching, "_is_public", lambda address: address == "127.0.0.1")
    name = f"pictures.example:{port}"
    assert fetch_media(f"http://{name}/photo.png", hosts=[name]) == IMAGE
    assert requested == ["pictures.example"]
    assert hosts[-1] == name


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "::127.0.0.1", "2002:7f00:1::", "64:ff9b::10.0.0.1",
     "64:ff9b:1::10.0.0.1"],
)  # fmt: skip
def test_private_addresses_are_not_requested(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, address)
    with pytest.raises(MediaError, match="is at a private address"):
        fetch_media("https://pictures.example/a.png", hosts=["pictures.example"])


def test_public_addresses_are_requested() -> None:
    """Those of IPv4, as a network of IPv6 alone writes them, too."""
    for address in ("8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"):
        assert fetching._is_public(address)


def test_redirects_take_no_time_of_their_own(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(step=4)
    monkeypatch.setattr(fetching, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(MediaError, match="took longer than 10 seconds"):
        fetch_media(f"{server[0]}/loop", ImageLimits(seconds=10))


def test_only_allowed_hosts_are_requested(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server
    name = f"pictures.example:{url.rpartition(':')[2]}"
    resolve(monkeypatch, "127.0.0.1", "127.0.0.1")
    monkeypatch.setattr(fetching, "_is_public", lambda _: True)
    for path in ("/a.png", ":8080/a.png"):
        with pytest.raises(MediaError, match=r"is not one that may be asked \(pictures.example:"):
            fetch_media(f"http://other.example{path}", hosts=[name])
    with pytest.raises(MediaError, match=r"host '127\.0\.0\.1:\d+' is not one that may be asked"):
        fetch_media(f"http://{name}/to/{url}/photo.png", hosts=[name])
