# SPDX-License-Identifier: Apache-2.0
"""A server may redirect, but not to where more people can change what arrives, or see the user's token."""

import ast
from pathlib import Path

import pytest
from checkout import ROOT
from local_hub import LocalHub

from qeff_zoo.checkpoint import hub_access
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.publish.plan import check_destination
from qeff_zoo.hub.remotes import hub_api, open_remote
from qeff_zoo.hub.remotes.http import _redirected
from qeff_zoo.hub.resolve.lookup import commit_of

HERE, AWAY, SAFE = "http://localhost:8000/a", "http://mirror.example/a", "https://host.example/a"


@pytest.mark.parametrize(
    ("url", "location"),
    [
        (HERE, AWAY),
        (HERE, "http://127.0.0.2/a"),
        (HERE, "http://localhost.example/a"),
        (HERE, "http://localhost@mirror.example/a"),
        (HERE, "//mirror.example/a"),
        ("http://127.0.0.1/a", AWAY),
        ("http://[::1]:80/a", AWAY),
        (SAFE, AWAY),
        (SAFE, HERE),  # a server elsewhere does not ask those of this machine
        (SAFE, "HTTP://mirror.example/a"),
    ],
)
def test_plain_http_to_elsewhere_is_refused(url: str, location: str) -> None:
    with pytest.raises(RemoteError, match=r"may change what arrives by http\. Expected") as caught:
        _redirected(url, location)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("url", "location"),
    [(HERE, SAFE), (HERE, "http://127.0.0.1:9/b"), (HERE, "/b"), (AWAY, SAFE), (SAFE, f"{SAFE}/b"),
     (AWAY, "http://other.example/b")],  # of insecure+http://, or of an HF_ENDPOINT that the user chose
)  # fmt: skip
def test_what_is_no_worse_than_before_is_followed(url: str, location: str) -> None:
    assert _redirected(url, location).endswith(("/a", "/b"))


@pytest.mark.parametrize(
    "location",
    ["https://host:99999/a", "https://[::1/a", "https://:80/a", "https://ho st:x/a", "https://h\u2024x/", "https://h\0/",
     f"https://host/{'a' * 70_000}"],
    ids=range(7),
)  # fmt: skip
def test_what_is_no_url_is_refused_in_our_words(location: str) -> None:
    with pytest.raises(RemoteError, match="it leads to"):
        _redirected(SAFE, location)


def test_a_server_on_this_machine_leads_to_no_other_by_http(hub: LocalHub, home: Path) -> None:
    hub.fault("GET", INDEX_NAME, status=302, headers={"Location": AWAY})
    with pytest.raises(RemoteError, match=r"mirror\.example.*may change what arrives by http"):
        open_remote("hf://acme/zoo").snapshot()


def test_the_token_is_for_one_scheme_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hub_api.credentials("https://hub.example/a")["authorization"] == "Bearer hf_secret"
    for other in ("http://hub.example", "https://hub.example:8443", "https://cdn.hub.example",
                  "https://hub.example@other.example", "https://hub.example.other"):  # fmt: skip
        assert "authorization" not in hub_api.credentials(f"{other}/a")


@pytest.mark.parametrize("far", [False, True])
def test_no_token_goes_by_plain_http_to_another_machine(
    far: bool, alice: LocalHub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To this machine it does; here the Hub of the tests counts as one elsewhere."""
    alice.commit("org/tiny", {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"})
    alice.commit("acme/zoo", {"README.md": b""})
    if far:
        monkeypatch.setattr(hub_access, "LOOPBACK", ())
    alice.log.clear()
    open_checkpoint("org/tiny", need_weights=False)
    commit_of("org/tiny", "main")
    assert open_remote("hf://acme/zoo").snapshot() is None
    assert len(alice.log) > 3
    assert {request.token for request in alice.log} == ({None} if far else {"hf_alice"})
    if far:
        with pytest.raises(PublishError, match=r"is reached by plain HTTP.* is not sent there"):
            check_destination("acme/zoo")


def test_every_call_of_the_hub_decides_about_the_token() -> None:
    called = {"HfApi", "hf_hub_download", "snapshot_download", "build_hf_headers"}
    for path in (ROOT / "qeff_zoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in called:
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                token = given.get("token", "")  # of a snapshot it is decided once
                assert "hub_token()" in token or token.endswith("token"), f"{path}:{node.lineno}"
