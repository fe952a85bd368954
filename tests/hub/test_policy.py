# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from signing_keys import KeyPair, make_pair

from qeff_zoo import cli
from qeff_zoo.errors import SettingsError
from qeff_zoo.hub.trust.policy import Policy, policy, scope_of
from qeff_zoo.hub.trust.signatures import Identity, fingerprint

ISSUER = "https://accounts.google.com"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[KeyPair]:
    folder = tmp_path_factory.mktemp("keys")
    return [make_pair(folder, name) for name in ("acme", "other")]


@pytest.fixture
def config(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the path of a settings file, which is not there yet."""
    monkeypatch.delenv("QEFF_ZOO_TRUST", raising=False)
    monkeypatch.delenv("QEFF_ZOO_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "qeff-zoo" / "config.json"


def trust(*arguments: str) -> None:
    assert cli.main(["trust", *arguments]) == 0


def test_a_remote_with_pins_of_its_own_takes_no_others(config: Path, pairs: list[KeyPair]) -> None:
    ours, reference = pairs
    trust("add", str(ours.public))
    trust("add", str(reference.public), "--for", "acme")
    trust("add", "--identity", "releases@acme.example", "--issuer", ISSUER, "--for", "acme/zoo")

    def keys(url: str | None) -> list[str]:
        return [fingerprint(key) for key in policy(url).keys]

    assert keys(None) == keys("hf://other/zoo") == [fingerprint(ours.public)]
    assert keys("hf://acme/models") == keys("hf://acme/zoo@main") == [fingerprint(reference.public)]
    assert policy("hf://acme/models").identities == ()
    assert policy("hf://acme/zoo@v1").identities == (Identity("releases@acme.example", ISSUER),)
    assert keys("hf://acme-evil/zoo") == [fingerprint(ours.public)]
    assert keys("https://acme/zoo") == [fingerprint(ours.public)]


def test_pins_outlive_the_file_that_they_came_from(
    config: Path, pairs: list[KeyPair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"stores": ["hf://acme/zoo"], "trust": {"mode": "require"}}))
    with pytest.raises(SettingsError, match="no signer is pinned"):
        policy()
    moved = tmp_path / "acme.pub"
    moved.write_bytes(pairs[0].public.read_bytes())
    trust("add", str(moved))
    trust("add", str(moved))  # again
    moved.unlink()
    assert len(policy().keys) == 1
    capsys.readouterr()
    trust("ls", "--json")
    (pin,) = json.loads(capsys.readouterr().out)
    assert (pin["scope"], pin["key"]) == (None, fingerprint(pairs[0].public))
    trust("add", str(pairs[1].public))
    trust("rm", pin["key"][:12])
    assert [fingerprint(key) for key in policy().keys] == [fingerprint(pairs[1].public)]
    assert json.loads(config.read_text())["stores"] == ["hf://acme/zoo"]


def test_pinned_signer_can_be_removed(config: Path, pairs: list[KeyPair]) -> None:
    trust("add", str(pairs[0].public), "--for", "https://mirror.example/zoo/")
    trust("add", "--identity", "me@example.org", "--issuer", ISSUER)
    assert cli.main(["trust", "rm", "me@example.org", "--for", "acme"]) == 1
    trust("rm", "me@example.org")
    trust("rm", fingerprint(pairs[0].public), "--for", "https://mirror.example/zoo")
    assert json.loads(config.read_text()) == {"trust": {}} or json.loads(config.read_text()) == {
        "trust": {"remotes": {}}
    }
    assert policy() == policy("https://mirror.example/zoo") == Policy()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--identity", "a@b"],
        ["KEY", "--identity", "a@b", "--issuer", ISSUER],
        ["/nowhere.pub"],
        ["KEY", "--for", "no such place"],
        ["KEY", "--for", "a/b/c"],
    ],
)
def test_invalid_signers_cannot_be_pinned(
    config: Path, pairs: list[KeyPair], arguments: list[str]
) -> None:
    given = [str(pairs[0].public) if each == "KEY" else each for each in arguments]
    assert cli.main(["trust", "add", *given]) == 1
    assert not config.exists()


@pytest.mark.parametrize(
    ("given", "scope"),
    [
        (None, None),
        ("acme", "hf://acme/*"),
        ("acme/zoo", "hf://acme/zoo"),
        ("hf://acme/zoo@main", "hf://acme/zoo"),
        ("https://host/zoo/", "https://host/zoo"),
        ("https://host/*", "https://host/*"),
    ],
)
def test_whom_a_pin_is_for(given: str | None, scope: str | None) -> None:
    assert scope_of(given) == scope


def test_precedence_of_the_environment_is_reported(
    config: Path,
    pairs: list[KeyPair],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QEFF_ZOO_TRUST", "{}")
    trust("add", str(pairs[0].public))
    assert "QEFF_ZOO_TRUST is set, and counts" in capsys.readouterr().err
