# SPDX-License-Identifier: Apache-2.0
"""Adapters that clients load: from what the operator named alone, without the operator's token, and with no probing."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fixtures_patterns import adapter
from local_hub import LocalHub

from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.errors import AdapterError, CheckpointError, ServingError
from qeff_zoo.serving import ServerOptions
from qeff_zoo.serving.apis.vllm.adapters import Sources, routes
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.schemas import LoadAdapter, UnloadAdapter


class Slots(dict[str, str]):
    """Adapters of a session that opens them, and has no program."""

    def __init__(self) -> None:
        super().__init__(own="of the operator")

    def load(self, name: str, source: str, **choices: Any) -> None:
        self[name] = open_adapter(source, **choices).repository or source

    def unload(self, name: str) -> None:
        if self.pop(name, None) is None:
            raise AdapterError(f"There is no adapter {name!r}.")


class Doors:
    """The two endpoints, with what may be loaded."""

    def __init__(self, *named: str) -> None:
        self.slots: Any = Slots()
        router = routes("/v1/", "tiny", self.slots, Sources.of(named))
        self._load, self._unload = (route.endpoint for route in router.routes)  # type: ignore[attr-defined]

    def load(self, path: str, name: str = "sql") -> tuple[int, str]:
        return self._status(self._load(LoadAdapter(lora_name=name, lora_path=path)))

    def unload(self, name: str) -> tuple[int, str]:
        return self._status(self._unload(UnloadAdapter(lora_name=name)))

    def _status(self, call: Any) -> tuple[int, str]:
        try:
            return asyncio.run(call).status_code, ""
        except ApiError as error:
            return error.status, error.message


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Give a folder with `ours`, which has an adapter, and `theirs`, which has one that is not to be read."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        adapter(tmp_path / name / "sql")
    (tmp_path / "ours" / "out").symlink_to(tmp_path / "theirs" / "sql")
    (tmp_path / "ours" / "in").symlink_to("sql")
    return tmp_path


def test_what_the_operator_named_is_loaded_and_unloaded(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = Doors(f"{places}/ours")
    for path in (f"{places}/ours/sql", f"{places}/ours/in", f"{places}/theirs/../ours/./sql"):
        assert doors.load(path) == (200, "")
        assert doors.load(path)[0] == 400  # by the name of another
        assert doors.unload("sql") == (200, "")
    monkeypatch.chdir(places)
    assert doors.load("ours/sql") == (200, "")
    assert Doors(f"{places}/ours/sql").load(f"{places}/ours/sql") == (200, "")


def test_existence_of_other_files_is_not_revealed(
    places: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("org/secret", {"adapter_config.json": b"{}"})
    monkeypatch.setenv("HOME", str(places))
    monkeypatch.chdir(places / "theirs")
    doors = Doors(f"{places}/ours", "org/known")
    named = [
        *(f"{places}/theirs/sql", f"{places}/theirs/none", f"{places}/ours/../theirs/sql", "a\0b"),
        *("~/ours/sql", "~root", "~root/x", "~", "sql", "./sql", "..", "/", "/proc/self/cwd/sql"),
        *(f"{places}/oursabc", f"file://{places}/ours/sql", "org/secret", "org/missing"),
        *("org/secret/sub", "org/known/../secret", "org/known/a/b", "org/known/", "ORG/KNOWN"),
    ]
    looked: list[str] = []

    def listening(look: Any) -> Any:
        return lambda path=".", *rest, **named: (looked.append(path), look(path, *rest, **named))[1]

    for name in ("stat", "lstat", "open", "listdir", "scandir", "readlink"):
        monkeypatch.setattr(os, name, listening(getattr(os, name)))
    found = [doors.load(path) for path in named]
    assert not looked
    assert {status for status, _ in found} == {403}
    assert len({problem.partition("expected")[2] for _, problem in found}) == 1
    assert doors.load(f"{places}/ours/out")[0] == 403  # a link that leads out
    assert not hub.log
    assert doors.slots == Slots()


def test_what_the_operator_loaded_stays(places: Path) -> None:
    doors = Doors(f"{places}/ours")
    assert doors.unload("own") == (
        403,
        "The adapter 'own' was loaded by the operator of this server; expected one that a client has loaded. Leave it.",
    )
    assert doors.unload("none")[0] == 404
    assert doors.load(f"{places}/ours/sql", "own")[0] == 400
    assert doors.slots == Slots()
    assert doors.load(f"{places}/ours/none")[0] == 400
    assert doors.load(f"{places}/ours/sql") == (200, "")  # a name that failed is free


def test_no_client_uses_the_operators_token(places: Path, alice: LocalHub) -> None:
    files = {path.name: path.read_bytes() for path in (places / "ours" / "sql").iterdir()}
    alice.commit("acme/open", files)
    alice.commit("acme/closed", files)
    alice.models["acme/closed"].private = True
    assert open_adapter("acme/closed").config["r"] == 2
    doors = Doors("acme/open", "acme/closed")
    alice.log.clear()
    assert doors.load("acme/open", "a") == (200, "")
    status, problem = doors.load("acme/closed", "b")
    assert (status, "acme/closed" in problem) == (400, True)
    assert alice.log
    assert {request.token for request in alice.log} == {None}
    with pytest.raises(CheckpointError):
        open_adapter("acme/closed", anonymous=True)


def test_what_may_be_loaded_is_checked_before_a_model_is(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="--allow-adapters has '/nowhere', which is no folder"):
        ServerOptions(name="tiny", fingerprint="qz1-ab", allow_adapters=(str(tmp_path), "/nowhere"))
