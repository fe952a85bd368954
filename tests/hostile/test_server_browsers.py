# SPDX-License-Identifier: Apache-2.0
"""Pages of strangers in a browser that reaches a server: by a name that leads to it, and from another origin."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from fixtures_serving import KEY, MODEL, running

from qeff_zoo import cli, serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.server.browsers import Hosts

CHAT, EVIL = "https://chat.example", "https://evil.example"
BODY = json.dumps({"model": MODEL, "prompt": [5], "max_tokens": 1}).encode()
JSON = {"Content-Type": "application/json"}


def request(
    url: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, Any, Any]:
    """Send a request with any headers; return the status, the headers and the answer."""
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.hostname, place.port, timeout=60)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**JSON, **named})
        answer = connection.getresponse()
        content = answer.read()
        return (
            answer.status,
            answer.headers,
            json.loads(content or b"null") if method == "POST" else content,
        )


def preflight(url: str, origin: str) -> tuple[int, Any]:
    requested = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    return request(url, "OPTIONS", "/v1/completions", Origin=origin, **requested)[:2]


@pytest.fixture(scope="module")
def guarded(engine: Engine) -> Iterator[str]:
    """Give the URL of a server with a name, an origin and a key."""
    hosts = Hosts.of("127.0.0.1", ["api.example", "port.example:81"])
    with running(engine, hosts=hosts, origins=[CHAT], api_keys=[KEY]) as url:
        yield url


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/none"])
def test_a_name_that_was_made_to_lead_here_is_refused(guarded: str, path: str) -> None:
    port = urlsplit(guarded).port
    for name in (
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "192.0.2.1",
        "a@localhost",
        "",
        "[::2]",
    ):
        status, _, content = request(guarded, "GET", path, Host=name, Authorization=f"Bearer {KEY}")
        assert (status, b"host_not_allowed" in content) == (421, True), name


def test_names_of_the_server_are_taken(guarded: str) -> None:
    port = urlsplit(guarded).port
    for name in (
        "localhost",
        f"LOCALHOST.:{port}",
        "127.0.0.1",
        f"[::1]:{port}",
        "[0:0::1]",
        "api.example:9",
        "port.example:81",
    ):
        assert request(guarded, "GET", "/health", Host=name)[0] == 200, name
    assert request(guarded, "GET", "/health", Host="port.example:82")[0] == 421


def test_names_by_where_a_server_listens() -> None:
    everywhere, here = Hosts.of("0.0.0.0"), Hosts.of("192.168.1.5")
    assert everywhere.has("192.168.1.5:8000")
    assert everywhere.has("[2001:db8::1]")
    assert not everywhere.has("evil.example")
    assert here.has("192.168.1.5")
    assert not here.has("192.168.1.6")
    assert Hosts.of("::").has("10.0.0.1")
    assert Hosts.of("::1", ["::5", "[::6]:80"]).has("[::5]")
    assert Hosts.of("::1", ["*"]).has("evil.example")


def test_no_page_of_a_stranger_has_anything_done(guarded: str, engine: Engine) -> None:
    for origin in (EVIL, "null", f"{CHAT}.evil.example", "http://chat.example", f"{CHAT}:8443"):
        status, headers = preflight(guarded, origin)
        assert (status, headers["Access-Control-Allow-Origin"]) == (403, None)
        # What a browser sends without asking first, such as a form.
        key = f"Bearer {KEY}"
        status, headers, answer = request(
            guarded, "POST", "/v1/completions", BODY, Origin=origin, Authorization=key
        )
        assert (status, answer["error"]["code"]) == (403, "origin_not_allowed")
        assert headers["Access-Control-Allow-Origin"] is None


def test_a_page_that_the_operator_named_is_answered(guarded: str) -> None:
    status, headers = preflight(guarded, CHAT)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, CHAT)
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert "authorization" in headers["Access-Control-Allow-Headers"]
    for key, expected in ((KEY, 200), ("wrong", 401)):  # a page may read its errors as well
        status, headers, _ = request(
            guarded, "POST", "/v1/completions", BODY, Origin=CHAT, Authorization=f"Bearer {key}"
        )
        assert (status, headers["Access-Control-Allow-Origin"]) == (expected, CHAT)
        assert "Origin" in headers["Vary"]
    assert "Access-Control-Allow-Credentials" not in headers


def test_pages_of_the_server_itself_and_what_is_no_browser(guarded: str) -> None:
    own, key = urlsplit(guarded).netloc, f"Bearer {KEY}"
    for headers in (
        {"Origin": f"http://{own}"},
        {"Origin": EVIL, "Sec_Fetch_Site": "same-origin"},
        {},
    ):
        assert (
            request(guarded, "POST", "/v1/completions", BODY, Authorization=key, **headers)[0]
            == 200
        )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_no_image_of_a_strange_page_loads_a_model(engine: Engine, site: str) -> None:
    """Such a request has no Origin. The page itself, and the figures, may be linked."""
    for origins, expected in (([], 403), (["*"], 200)):
        with running(engine, origins=origins) as url:
            place = "/tokenizer_info?model=other"
            assert request(url, "GET", place, None, Sec_Fetch_Site=site)[0] == expected
            for own in ("same-origin", "none"):
                assert request(url, "GET", place, None, Sec_Fetch_Site=own)[0] == 200
            assert request(url, "GET", "/health", None, Sec_Fetch_Site=site)[0] == 200


def test_without_a_flag_no_origin_is_allowed(engine: Engine) -> None:
    with running(engine) as url:
        assert preflight(url, CHAT)[0] == 403
        assert request(url, "POST", "/v1/completions", BODY, Origin=CHAT)[0] == 403
    with running(engine, origins=["*"]) as url:
        assert preflight(url, EVIL)[0] == 200
        status, headers, _ = request(url, "POST", "/v1/completions", BODY, Origin=EVIL)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "*")


def test_the_command_guards_by_default(
    trained: Package,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = list[serving.ServerOptions]()
    monkeypatch.setattr(serving, "serve", lambda _, __, choices, ___: chosen.append(choices))
    argv = ["serve", str(trained.path), "--port", "0"]
    assert cli.main(argv) == 0
    assert (chosen[0].allowed_hosts, chosen[0].allowed_origins) == (("127.0.0.1",), ())
    assert (
        cli.main(
            [*argv, "--allowed-hosts", "Api.example, b:80", "--allowed-origins", f"{CHAT},null"]
        )
        == 0
    )
    assert chosen[1].allowed_hosts == ("127.0.0.1", "api.example", "b:80")
    assert chosen[1].allowed_origins == (CHAT, "null")
    for flag, wrong in (
        ("hosts", "https://a"),
        ("origins", "chat.example"),
        ("origins", f"{CHAT}/path"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*argv, f"--allowed-{flag}", wrong])
        assert "Correct it" in capsys.readouterr().err
