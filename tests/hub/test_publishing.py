# SPDX-License-Identifier: Apache-2.0
"""Publishing, by the genuine client against a Hub on the loopback, and to a folder: what is refused, and what goes."""

import json
from pathlib import Path
from typing import Any

import package_builder
import pytest
from local_hub import LocalHub
from publications import (
    REPO,
    SOURCE,
    Make,
    assert_whole,
    folder_files,
    go,
    titles,
    uploaded,
    writes,
)

from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode
from qeff_zoo.hub.publish import publish
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.hub.publish.plan import check_destination, plan_publication
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.trust import sign
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import SIGNATURE_NAME


def refusal(package: Package, where: str = REPO, **options: Any) -> str:
    with pytest.raises(PublishError) as caught:
        go(package, where, **options)
    return str(caught.value)


# --- what goes ------------------------------------------------------------------------------------
def test_a_package_goes_in_one_commit(make_package: Make, alice: LocalHub) -> None:
    package = make_package()
    url = go(package)
    index = assert_whole(alice.files(REPO), package)
    assert url == f"{alice.endpoint}/{REPO}/commit/{alice.models[REPO].branches['main']}"
    assert titles(alice) == [
        f"Add org/tiny: ort-int4-pl128-cl4096-bs1 {package.build_key[4:20]}", "initial commit"
    ]  # fmt: skip
    (entry,) = index.entries
    there = {path for path in alice.files(REPO) if path.startswith(entry.path)}
    names = {*package_builder.FILES, "manifest.json", "specializations.json"}
    assert there == {f"{entry.path}/{name}" for name in names}
    assert (entry.signed, entry.validated, entry.model) == (False, "checkpoint", SOURCE)
    assert {request.token for request in alice.log if "/_content/" in request.path} == {None}


def test_a_package_goes_into_a_folder(make_package: Make, tmp_path: Path, alice: LocalHub) -> None:
    package, folder = make_package(), tmp_path / "new" / "zoo"
    assert go(package, f"file://{folder}") == f"file://{folder}"
    assert_whole(folder_files(folder), package)
    assert not alice.log


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_the_second_time_nothing_goes(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    package, where = make_package(), REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    go(package, where)
    before = titles(alice) if kind == "hub" else folder_files(tmp_path / "zoo")
    alice.log.clear()
    plan = plan_publication(package, where)
    assert plan.nothing_to_do
    assert publish(plan) == plan.remote.url
    assert writes(alice) == []
    assert (titles(alice) if kind == "hub" else folder_files(tmp_path / "zoo")) == before


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_packages_gather_in_one_remote(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    packages = [make_package(ctx_len) for ctx_len in (1024, 2048, 4096)]
    for package in packages:
        go(package, where)
    files = alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo")
    assert assert_whole(files, *packages).serial == 3


def test_weights_that_the_repository_has_are_not_sent_again(
    make_package: Make, alice: LocalHub
) -> None:
    go(make_package(1024))
    alice.log.clear()
    plan = plan_publication(make_package(2048), REPO)
    weights = len(package_builder.FILES["model.onnx.data"])
    assert plan.as_dict()["bytes"] - plan.as_dict()["bytes_to_upload"] >= weights
    publish(plan)
    assert uploaded(alice) < weights  # the index


def test_a_large_file_goes_in_parts(
    make_package: Make, alice: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alice, "part_bytes", 5000)
    package = make_package()
    go(package)
    assert_whole(alice.files(REPO), package)
    assert len(alice.requests("?part=", "PUT")) == 4
    assert len(alice.requests("/_complete/", "POST")) == 1


def test_a_plan_only_reads(
    make_package: Make, alice: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    package = make_package()
    assert main(["publish", str(package.path), REPO, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "org/tiny -> hf://acme/zoo (new, public): 8 files, 21 kB; 0 there already, 21 kB to upload\n"
    )
    assert "licence     for everyone: its source's licence 'apache-2.0' allows it" in shown
    assert main(["publish", str(package.path), REPO, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["creates"], plan["visibility"], plan["listed"]) == (True, "public", False)
    assert sum(file["size"] for file in plan["files"]) == plan["bytes_to_upload"]
    assert {file["state"] for file in plan["files"]} == {"missing"}
    assert writes(alice) == []
    assert REPO not in alice.models


def test_the_command_prints_where_it_went(
    make_package: Make, alice: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    package = make_package()
    assert main(["publish", str(package.path), REPO]) == 0
    printed_text = capsys.readouterr()
    assert (
        printed_text.out
        == f"{alice.endpoint}/{REPO}/commit/{alice.models[REPO].branches['main']}\n"
    )
    assert printed_text.err.splitlines()[0].startswith(
        "org/tiny -> hf://acme/zoo (new, public): 8 files"
    )
    assert main(["publish", "0" * 64, f"hf://{REPO}", "--json"]) == 1  # not in the store
    assert main(["publish", str(package.path), f"hf://{REPO}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["url"], answer["bytes_to_upload"]) == ("hf://acme/zoo", 0)


def test_to_a_branch(make_package: Make, alice: LocalHub) -> None:
    go(make_package(1024))
    alice.models[REPO].branches["dev"] = alice.models[REPO].branches["main"]
    package = make_package(2048)
    go(package, f"hf://{REPO}@dev")
    assert package.build_key[4:20] in " ".join(alice.files(REPO, "dev"))
    assert package.build_key[4:20] not in " ".join(alice.files(REPO))
    assert "No branch" not in refusal(package, f"hf://{REPO}@{'0' * 40}")
    assert "has no branch 'none'" in refusal(package, f"hf://{REPO}@none")


def test_a_pull_request_changes_nothing_yet(make_package: Make, alice: LocalHub) -> None:
    first, second = make_package(1024), make_package(2048)
    go(first)
    url = go(second, create_pr=True)
    assert url == f"{alice.endpoint}/{REPO}/discussions/1"
    assert_whole(alice.files(REPO), first)
    assert_whole(alice.files(REPO, "refs/pr/1"), first, second)


def test_a_stranger_may_open_a_pull_request(
    make_package: Make, alice: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_package(1024)
    go(package)
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    assert "Cannot commit to 'hf://acme/zoo'" in refusal(make_package(2048))
    assert go(make_package(2048), create_pr=True).endswith("/discussions/1")
    assert_whole(alice.files(REPO), package)


def test_own_text_in_a_model_card_is_kept(make_package: Make, alice: LocalHub) -> None:
    go(make_package(1024))
    reference = alice.files(REPO)["README.md"].replace(b"# org/tiny", b"# Ada's zoo")
    alice.commit(REPO, {"README.md": reference})
    go(make_package(2048))
    card = alice.files(REPO)["README.md"].decode()
    assert "# Ada's zoo" in card
    assert "cl2048" in card


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_a_notice_is_shown_in_the_card(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    package = make_package()
    go(package, where)
    publish_notice(where, package.build_key[4:20], "known_bad", reason="it stutters")
    files = alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo")
    assert "| known\\_bad: it stutters |" in files["README.md"].decode()
    assert_whole(files, package)
    go(package, where)  # says no more than the notice does
    assert (
        "it stutters"
        in (alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo"))[
            "README.md"
        ].decode()
    )


# --- signatures -----------------------------------------------------------------------------------
@pytest.fixture
def key(tmp_path: Path) -> Path:
    pytest.importorskip("model_signing")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "key.pem"
    path.write_bytes(secret.private_bytes(*forms, serialization.NoEncryption()))
    return path


def test_a_signature_goes_with_it_or_follows(
    make_package: Make, alice: LocalHub, key: Path
) -> None:
    package = make_package()
    go(package)
    assert not decode(alice.files(REPO)[INDEX_NAME]).entries[0].signed
    signature = sign(package, key=key)
    go(package)
    index = assert_whole(alice.files(REPO), package)
    (entry,) = index.entries
    assert entry.signed
    assert alice.files(REPO)[f"{entry.path}/{SIGNATURE_NAME}"] == signature.read_bytes()
    signature.unlink()
    assert plan_publication(package, REPO).nothing_to_do  # and the signature there stays
    sign(package, key=key)
    assert f"another {entry.path}/{SIGNATURE_NAME}" in refusal(package)


# --- who may see it -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "options", "private"),
    [
        ({}, {}, False),
        ({}, {"private": True}, True),
        ({"license": None}, {}, True),
        ({"license": "llama3.1"}, {}, True),
    ],
    ids=["open", "asked-for", "no-licence", "restricted"],
)
def test_a_new_repository_is_as_private_as_it_must_be(
    make_package: Make,
    alice: LocalHub,
    changes: dict[str, Any],
    options: dict[str, Any],
    private: bool,
) -> None:
    package = make_package(**changes)
    plan = plan_publication(package, REPO, **options)
    assert plan.visibility == ("private" if private else "public")
    publish(plan)
    assert alice.models[REPO].private is private
    assert_whole(alice.files(REPO), package)


def test_a_gated_source_makes_it_private(make_package: Make, alice: LocalHub) -> None:
    alice.models[SOURCE].gated = True
    go(make_package())
    assert alice.models[REPO].private


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_stays_as_it_is(make_package: Make, alice: LocalHub, private: bool) -> None:
    alice.commit(REPO, {"notes.txt": b"mine"})
    alice.models[REPO].private = private
    go(make_package())
    assert alice.models[REPO].private is private
    assert not alice.requests("/settings", "PUT")
    assert alice.files(REPO)["notes.txt"] == b"mine"


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        (
            {},
            {"private": True},
            "acme/zoo is public, and who can see a repository is never changed",
        ),
        ({"license": None}, {}, "acme/zoo is public, but its source states no licence"),
        ({"license": "llama3.1"}, {}, "acme/zoo is public, but its source's licence 'llama3.1'"),
    ],
    ids=["asked-for", "no-licence", "restricted"],
)
def test_restricted_package_is_not_published_to_a_public_repository(
    make_package: Make,
    alice: LocalHub,
    changes: dict[str, Any],
    options: dict[str, Any],
    reason: str,
) -> None:
    alice.commit(REPO, {"notes.txt": b"mine"})
    message = refusal(make_package(**changes), **options)
    assert message.startswith("Cannot publish org/tiny to 'acme/zoo'; nothing was sent:\n  - ")
    assert reason in message
    assert writes(alice) == []


def test_a_repository_that_became_public_is_noticed(make_package: Make, alice: LocalHub) -> None:
    plan = plan_publication(make_package(license=None), REPO)
    alice.commit(REPO, {"notes.txt": b"somebody was faster, and public"})
    with pytest.raises(PublishError, match="has become public"):
        publish(plan)
    assert uploaded(alice) == 0
    assert list(alice.files(REPO)) == ["notes.txt"]


# --- what is refused ------------------------------------------------------------------------------
def test_every_reason_is_given_at_once_and_nothing_is_sent(
    make_package: Make, alice: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.commit(REPO, {"notes.txt": b"mine"})
    monkeypatch.setitem(package_builder.FILES, "config.json", b"AKIA" + b"ABCDEFGH12345678")
    made = {**package_builder.draft()["provenance"], "dirty": True}
    package = make_package(license=None, validated="none", validation=[], provenance=made)
    (package.path / "notes.txt").write_text("mine")
    reasons = refusal(package, private=True).splitlines()[1:]
    for part in (
        "changes that no commit has", "It is not validated", "'notes.txt' is not in the manifest",
        "config.json:1 holds what looks like an AWS access key", "never changed here", "states no licence",
    ):  # fmt: skip
        assert len([reason for reason in reasons if part in reason]) == 1, reasons
    assert len(reasons) == 6
    assert writes(alice) == []


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_another_package_of_the_same_key_is_not_overwritten(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    first = make_package()
    go(first, where)
    alice.log.clear()
    made = {**package_builder.draft()["provenance"], "finished": "2026-11-21T10:00:00Z"}
    message = refusal(make_package(provenance=made), where)
    assert "another package of the same key" in message
    assert "finished at 2026-11-20T10:00:00Z; this one at 2026-11-21T10:00:00Z" in message
    assert writes(alice) == []
    assert_whole(alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo"), first)


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_files_that_no_index_lists_are_not_overwritten(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    package, zoo = make_package(), tmp_path / "zoo"
    path = plan_publication(package, REPO).entry.path
    if kind == "hub":
        alice.commit(REPO, {f"{path}/LICENSE": b"another"})
    else:
        (zoo / path).mkdir(parents=True)
        (zoo / path / "LICENSE").write_bytes(b"another")
    message = refusal(package, REPO if kind == "hub" else f"file://{zoo}")
    assert f"another {path}/LICENSE, and nothing is overwritten" in message
    assert writes(alice) == []


def test_another_who_is_faster_with_the_same_key_is_not_overwritten(
    make_package: Make, alice: LocalHub
) -> None:
    first = make_package()
    made = {**package_builder.draft()["provenance"], "finished": "2026-11-21T10:00:00Z"}
    late = plan_publication(make_package(provenance=made), REPO)
    go(first)
    with pytest.raises(PublishError, match="another package of the same key"):
        publish(late)
    assert_whole(alice.files(REPO), first)


@pytest.mark.parametrize(
    ("where", "error", "reason"),
    [
        ("zoo", RemoteError, "'zoo' names no remote"),
        ("https://host/zoo", PublishError, "a web server only gives"),
        (f"hf://{REPO}@{'0' * 40}", PublishError, "a commit does not change"),
        (f"hf://{REPO}@dev", PublishError, "a new one has no branch 'dev'"),
        ("s3://bucket", RemoteError, "names no remote"),
        ("nobody/zoo", RemoteError, "Cannot make 'nobody/zoo'"),
    ],
)
def test_where_nothing_can_be_published(
    make_package: Make, where: str, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        go(make_package(), where)


def test_a_remote_that_is_only_read(make_package: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_STORES", f"ro+hf://{REPO}")
    assert "the settings say that it is only read" in refusal(make_package())


@pytest.mark.parametrize("option", ["private", "create_pr"])
def test_options_of_the_hub_do_not_apply_to_a_folder(
    make_package: Make, tmp_path: Path, option: str
) -> None:
    message = refusal(make_package(), f"file://{tmp_path}/zoo", **{option: True})
    assert f"--{option.replace('_', '-')} is of Hub repositories" in message
    assert not (tmp_path / "zoo").exists()


def test_a_pull_request_needs_a_repository(make_package: Make, alice: LocalHub) -> None:
    assert "a pull request could not be merged" in refusal(make_package(), create_pr=True)
    assert writes(alice) == []


def test_a_login_is_required(
    make_package: Make, alice: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "There is no Hub login. Run `hf auth login`" in refusal(make_package())
    assert writes(alice) == []


def test_offline_only_a_folder_is_published_to(
    make_package: Make, alice: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    package = make_package()
    with pytest.raises(RemoteError, match="QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set"):
        go(package)
    go(package, f"file://{tmp_path}/zoo")
    assert_whole(folder_files(tmp_path / "zoo"), package)
    assert not alice.log


# --- build --publish ------------------------------------------------------------------------------
def test_a_build_that_could_not_be_published_is_not_begun(
    make_package: Make,
    alice: LocalHub,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alice.commit(REPO, {"notes.txt": b"mine"})
    for options, reason in (
        (["--publish", REPO, "--private"], "never changed here"),
        (["--publish", REPO, "--no-validate"], "--publish and --no-validate exclude each other"),
        (["--publish", "zoo"], "'zoo' names no remote"),
        (["--private"], "--private applies to publishing"),
    ):
        assert main(["build", "no/such-model", *options]) == 1
        assert reason in capsys.readouterr().err
    check_destination(REPO)
    assert writes(alice) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"orgs": []}, "'alice' is no member of 'acme'"),
        ({"orgs": [{"name": "acme", "roleInOrg": "read"}]}, "may only read from 'acme'"),
        ({"auth": {"accessToken": {"role": "read"}}}, "may only read from 'acme'"),
    ],
    ids=["stranger", "reader", "token"],
)
def test_a_token_that_may_not_write_is_refused_before_a_build(
    change: dict[str, Any],
    reason: str,
    alice: LocalHub,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_destination(REPO)
    found = {"name": "alice", "orgs": [{"name": "acme", "roleInOrg": "write"}], **change}
    monkeypatch.setattr("huggingface_hub.whoami", lambda *_, **__: found)
    with pytest.raises(PublishError, match=reason):
        check_destination(REPO)


def test_a_build_is_published(
    make_package: Make,
    alice: LocalHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = make_package()
    built = pipeline.Built(package=package, hit=False, seconds={"plan": 1.0}, peak_rss_bytes=1)
    monkeypatch.setattr(pipeline, "build", lambda *_, **__: built)
    assert main(["build", SOURCE, "--publish", REPO, "--private"]) == 0
    printed_text = capsys.readouterr()
    assert printed_text.out == f"{package.path}\n"
    assert f"published: {alice.endpoint}/{REPO}/commit/" in printed_text.err
    assert alice.models[REPO].private
    assert_whole(alice.files(REPO), package)
    assert main(["build", SOURCE, "--publish", REPO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published"] == f"hf://{REPO}"


def test_an_index_is_visible_to_readers(make_package: Make) -> None:
    package = make_package()
    go(package)
    snapshot = open_remote(f"hf://{REPO}").snapshot()
    assert snapshot is not None
    (entry,) = snapshot.index.of_model(SOURCE)
    content = snapshot.read(f"{entry.path}/manifest.json", limit=1 << 20)
    assert content == (package.path / "manifest.json").read_bytes()
