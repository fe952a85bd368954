# SPDX-License-Identifier: Apache-2.0
"""What is not published, and what not for everyone to see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import package_builder
import pytest
from checkout import TINY_LLAMA
from local_hub import LocalHub

from qeff_zoo.hub.publish.gate import KNOWN, REDISTRIBUTABLE, leaks, licence_of, objections
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import SIGNATURE_NAME

SOURCE = "org/tiny"
LETTERS = "aB3dE5gH7jK9"  # made up here, so that no scanner takes this file for a leak

SECRETS = {
    "hugging-face": ("hf_" + LETTERS * 3, "a Hugging Face token"),
    "openai": ("sk-" + "proj-" + LETTERS * 3, "an API key"),
    "aws": ("AKIA" + "ABCDEFGH12345678", "an AWS access key"),
    "github": ("ghp_" + LETTERS * 3, "a GitHub token"),
    "private-key": ("-----BEGIN EC " + "PRIVATE KEY-----", "a private key"),
    "any-private-key": ("-----BEGIN " + "PRIVATE KEY-----", "a private key"),
    "bearer": ("Authorization: Bearer " + LETTERS * 2, "a bearer token"),
    "url": ("https://me:" + "hunter2" + "@hub.example/x", "a URL with a password"),
    "url-without-user": ("redis://:" + "hunter2" + "@cache/0", "a URL with a password"),
}


def text(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "text"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- secrets --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_by_line_and_kind(tmp_path: Path, name: str) -> None:
    secret, kind = SECRETS[name]
    assert [*leaks(text(tmp_path, f"first\n{{'x': '{secret}'}}\nlast"))] == [(2, kind)]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_within_a_json_string_is_found(tmp_path: Path, name: str) -> None:
    secret, kind = SECRETS[name]
    log = json.dumps({"log": f"line\n{secret}\nmore"})
    assert [*leaks(text(tmp_path, log))] == [(1, kind)]


def test_all_secrets_of_a_text_are_found(tmp_path: Path) -> None:
    content = "\n".join(secret for secret, _ in SECRETS.values())
    assert [line for line, _ in leaks(text(tmp_path, content))] == [*range(1, len(SECRETS) + 1)]


@pytest.mark.parametrize(
    "innocent",
    [
        "",
        "hf_hub_download and hf_transfer are of huggingface_hub",
        "an ask-the-audience-and-then-answer-them-all task-specific-prompt",
        "Authorization: Bearer <token>; a bearer authentication-token-is-needed",
        "https://${USER}:${PASSWORD}@hub.example https://{user}:{password}@x https://me:***@x",
        "https://hub.example:8080/a@b http://localhost:8000/x?mail=me@example.org",
        "sha256:" + "a1" * 32,
        "xhf_" + LETTERS * 3,
        "hf_" + "x" * 34 + " sk-" + "x" * 40 + " Bearer " + "x" * 30,
        "AKIAIOSFODNN7" + "EXAMPLE",
        "-----BEGIN PUBLIC KEY-----",
    ],
)
def test_other_words_are_not_taken_for_secrets(tmp_path: Path, innocent: str) -> None:
    assert [*leaks(text(tmp_path, innocent))] == []


def test_files_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    assert [*leaks(text(tmp_path, b"\0\1" + SECRETS["aws"][0].encode()))] == []


def test_a_tokenizer_holds_no_secret() -> None:
    tokenizer = TINY_LLAMA / "tokenizer.json"
    assert [*leaks(tokenizer)] == []


# --- packages -------------------------------------------------------------------------------------
def objected(folder: Path, **changes: Any) -> list[str]:
    return objections(package_builder.fill(folder, **changes))


def test_a_proved_package_may_go(tmp_path: Path) -> None:
    assert objected(tmp_path) == []


def test_every_byte_is_read_and_reported(tmp_path: Path) -> None:
    package, reported = package_builder.fill(tmp_path), []
    objections(package, reported.append)
    assert sum(reported) == package.size


def damage(package: Package) -> None:
    path = package.path / "model.onnx.data"
    path.write_bytes(bytes(path.stat().st_size))


def cut(package: Package) -> None:
    (package.path / "tokenizer.json").write_bytes(b"")


def add(package: Package) -> None:
    (package.path / "notes.txt").write_text("mine")


def link(package: Package) -> None:
    path = package.path / "config.json"
    path.rename(package.path / ".." / "elsewhere")
    path.symlink_to("../elsewhere")


def sign_wrongly(package: Package) -> None:
    (package.path / SIGNATURE_NAME).write_text("{}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damage, "It is not what its manifest says: 'model.onnx.data' has digest"),
        (cut, "'tokenizer.json' has 0 bytes, expected 2"),
        (add, "'notes.txt' is not in the manifest"),
        (link, "'config.json' is missing, or not a regular file"),
        (sign_wrongly, "manifest.json.sigstore does not belong to it: Cannot read the signature"),
    ],
    ids=["damaged", "cut-short", "unlisted", "linked", "signature"],
)
def test_a_package_that_changed_stays(
    tmp_path: Path, change: Callable[[Package], None], reason: str
) -> None:
    package = package_builder.fill(tmp_path / "package")
    change(package)
    (only,) = objections(package)
    assert reason in only


def test_a_package_of_changed_sources_stays(tmp_path: Path) -> None:
    made = {**package_builder.draft()["provenance"], "dirty": True}
    (only,) = objected(tmp_path, provenance=made)
    assert only.startswith("It was built from sources with changes that no commit has.")


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        ([], "nothing was compared with Hugging Face"),
        ([package_builder.check(value=0.5, passed=False, canary=None)], "1 checks failed"),
    ],
    ids=["not-run", "failed"],
)
def test_an_unproved_package_stays(
    tmp_path: Path, checks: list[dict[str, Any]], reason: str
) -> None:
    checks = [{key: value for key, value in check.items() if value is not None} for check in checks]
    (only,) = objected(tmp_path, validated="none", validation=checks)
    assert f"It is not validated: {reason}." in only


def test_a_package_without_its_evidence_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(package_builder.FILES, "evidence/logits.json")
    (only,) = objected(tmp_path)
    assert "holds no file of evidence" in only


@pytest.mark.parametrize("name", ["config.json", "evidence/run.log", "LICENSE"])
def test_a_package_with_a_secret_stays_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    secret = SECRETS["hugging-face"][0]
    monkeypatch.setitem(package_builder.FILES, name, f'{{\n"token": "{secret}"}}'.encode())
    (only,) = objected(tmp_path)
    assert only.startswith(f"{name}:2 holds what looks like a Hugging Face token.")
    assert secret not in only


def test_a_secret_in_the_manifest_is_found(tmp_path: Path) -> None:
    secret = SECRETS["url"][0]
    (only,) = objected(tmp_path, why={"source": f"user: {secret}"})
    assert only.startswith("manifest.json:")
    assert "a URL with a password" in only
    assert "hunter2" not in only


def test_all_obstacles_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(package_builder.FILES, "config.json", SECRETS["aws"][0].encode())
    made = {**package_builder.draft()["provenance"], "dirty": True}
    package = package_builder.fill(tmp_path, provenance=made, validated="none", validation=[])
    damage(package)
    add(package)
    assert len(objections(package)) == 5


# --- licences -------------------------------------------------------------------------------------
def manifest(**changes: Any) -> dict[str, Any]:
    return package_builder.draft(**changes)


@pytest.mark.parametrize("stated", ["apache-2.0", "Apache-2.0", "MIT", "openrail++"])
def test_an_open_source_of_an_open_model_is_for_everyone(hub: LocalHub, stated: str) -> None:
    hub.commit(SOURCE, {"config.json": b"{}"})
    licence = licence_of(manifest(license=stated), check_gate=True)
    assert licence.public
    assert licence.reason.endswith(f"licence {stated!r} allows it, and org/tiny is not gated")


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (None, "its source states no licence"),
        ("llama3.1", "licence is 'llama3.1'"),
        ("cc-by-nc-4.0", "'cc-by-nc-4.0'"),
        ("other", "'other'"),
        ("My own", "'My own'"),
    ],
)
def test_other_licences_are_not_and_there_is_no_question(
    hub: LocalHub, stated: str | None, reason: str
) -> None:
    licence = licence_of(manifest(license=stated), check_gate=True)
    assert not licence.public
    assert reason.removeprefix("licence is ") in licence.reason
    assert not hub.log


def test_a_gated_source_is_not_for_everyone(hub: LocalHub) -> None:
    hub.commit(SOURCE, {"config.json": b"{}"})
    hub.models[SOURCE].gated = True
    licence = licence_of(manifest(), check_gate=True)
    assert (licence.public, "org/tiny is gated" in licence.reason) == (False, True)


def test_a_private_source_is_not_for_everyone(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    hub.commit("acme/own", {"config.json": b"{}"})
    hub.models["acme/own"].private = True
    spec = package_builder.made_from({"model_id": "acme/own"})
    licence = licence_of(manifest(spec=spec), check_gate=True)
    assert (licence.public, licence.reason) == (False, "acme/own is private")


def test_package_of_unknown_access_is_not_public(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        "it is not known whether org/tiny is gated"
        in licence_of(manifest(), check_gate=True).reason
    )
    hub.log.clear()
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    licence = licence_of(manifest(), check_gate=True)
    assert (licence.public, "QEFF_ZOO_OFFLINE or" in licence.reason) == (False, True)
    assert not hub.log


def test_of_a_folder_the_licence_alone_decides(hub: LocalHub) -> None:
    spec = package_builder.made_from({"weights": "sha256:" + "a" * 64})
    assert licence_of(manifest(spec=spec), check_gate=True).public
    assert licence_of(manifest(), check_gate=False).public
    assert not hub.log


def test_licences_are_named_as_the_hub_does() -> None:
    assert REDISTRIBUTABLE < KNOWN
    assert {"llama3", "gemma", "other", "cc-by-nc-4.0", "gpl-3.0"} <= KNOWN - REDISTRIBUTABLE
    assert all(name == name.lower() for name in KNOWN)
