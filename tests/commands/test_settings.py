# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qeff_zoo import settings as user_settings
from qeff_zoo.errors import SettingsError
from qeff_zoo.settings import Settings, StoreSetting, settings


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """Give a function that writes the settings file."""
    for name in (user_settings.STORES_ENV, user_settings.TRUST_ENV, user_settings.OFFLINE_ENV):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config" / "qeff-zoo" / "config.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("QEFF_ZOO_CONFIG", raising=False)

    def put(content: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return put


def test_there_need_be_no_settings(config: Callable[[Any], Path]) -> None:
    assert settings() == Settings()


def test_settings_file_is_read(config: Callable[[Any], Path]) -> None:
    stores = [
        "hf://a/b",
        {"url": "https://x/y", "read_only": True},
        "ro+file:///z",
        {"url": "file:///w"},
    ]
    config({"stores": stores, "trust": {"mode": "require"}})
    found = settings()
    assert found.stores == (
        StoreSetting("hf://a/b"), StoreSetting("https://x/y", True), StoreSetting("file:///z", True), StoreSetting("file:///w"),
    )  # fmt: skip
    assert found.trust == {"mode": "require"}


def test_environment_wins(config: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    config({"stores": ["hf://a/b"], "trust": {"mode": "require", "keys": ["k"]}})
    monkeypatch.setenv("QEFF_ZOO_STORES", "file:///x")
    monkeypatch.setenv("QEFF_ZOO_TRUST", "warn")
    assert settings() == Settings((StoreSetting("file:///x"),), {"mode": "warn", "keys": ["k"]})
    monkeypatch.setenv("QEFF_ZOO_TRUST", '{"mode": "off"}')
    assert settings().trust == {"mode": "off"}
    monkeypatch.setenv("QEFF_ZOO_STORES", "")
    assert settings().stores == ()


def test_file_that_is_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_CONFIG", str(tmp_path / "absent.json"))
    with pytest.raises(SettingsError, match="it is not there"):
        settings()
    (tmp_path / "absent.json").write_text('{"stores": ["hf://a/b"]}')
    assert settings().stores == (StoreSetting("hf://a/b"),)


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", "[" * 100_000, {"store": []}, {"stores": "hf://a/b"}, {"trust": "require"},
        {"stores": [1]}, {"stores": [""]},
        {"stores": [{"url": "x", "readonly": True}]}, {"stores": [{"url": "x", "read_only": "yes"}]},
        {"stores": [{"read_only": True}]}, " " * (2 << 20),
    ],
)  # fmt: skip
def test_contradicting_settings_are_refused(config: Callable[[Any], Path], content: Any) -> None:
    path = config(content)
    with pytest.raises(SettingsError, match="Cannot read the settings") as caught:
        settings()
    assert str(path) in str(caught.value)


def test_trust_that_cannot_be_read_is_refused(
    config: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_ZOO_TRUST", "{mode: off}")
    with pytest.raises(SettingsError, match="QEFF_ZOO_TRUST"):
        settings()


@pytest.mark.parametrize(("value", "off"), [("1", True), ("true", True), ("0", False), ("", False)])
@pytest.mark.parametrize("name", ["QEFF_ZOO_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_is_one_of_two_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, off: bool
) -> None:
    for other in ("QEFF_ZOO_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    assert user_settings.offline() is off
