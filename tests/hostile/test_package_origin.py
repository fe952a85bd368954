# SPDX-License-Identifier: Apache-2.0
"""A stranger's package is never taken for one that was built here, and is used only as the trust policy lets it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_builds import Models
from fixtures_pulls import pull
from package_builder import SOURCE, made_from, overwrite
from remote_builder import entry_of, make, origin_of, write_remote
from signing_keys import KeyPair, make_pair

import qeff_zoo
from qeff_zoo import cli, pipeline
from qeff_zoo.api import find_package, find_usable
from qeff_zoo.errors import PackageError, PublishError, RemoteError, TrustError
from qeff_zoo.hub import trust
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode, encode
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.hub.publish.plan import plan_publication
from qeff_zoo.hub.pull.bundle import export_bundle
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.resolve import resolve
from qeff_zoo.hub.resolve.lookup import look_up
from qeff_zoo.hub.trust.usage import is_as_good_as_ours
from qeff_zoo.package import Package
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BUILT_HERE, Origin

NOTE = "manifest.json.origin"


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    return make_pair(tmp_path, "stranger")


@pytest.fixture
def remote(models: Models, tmp_path: Path, pair: KeyPair) -> str:
    """Publish what a stranger built and signed: the key of our build, and other weights for all that one knows."""
    reference = models.build(models.llama, tmp_path / "elsewhere")
    trust.sign(reference, key=pair.private)
    return write_remote(tmp_path / "zoo", reference)


@pytest.fixture
def pulled(remote: str, home: Path) -> Package:
    assert not home.exists()
    package = pull(remote).package  # by its place: nobody validated it
    assert isinstance(Store().origin(package.build_key), Origin)
    return package


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the policy to one that requires a signature by some key."""

    def require(pinned: KeyPair) -> None:
        settings = {"mode": "require", "keys": [str(pinned.public)]}
        monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))

    return require


def test_it_saves_no_build(models: Models, home: Path, pulled: Package) -> None:
    models.trace(models.llama, home)
    built = pipeline.build(str(models.llama), validate=False)
    assert (built.hit, built.package.build_key) == (False, pulled.build_key)
    assert Store().is_built_here(pulled.build_key)
    assert pipeline.build(str(models.llama), validate=False).hit


def test_it_saves_a_build_where_its_signer_is_pinned(
    models: Models, pulled: Package, pair: KeyPair, trusting: Callable[..., None]
) -> None:
    trusting(pair)
    assert pipeline.build(str(models.llama), validate=False).hit
    assert not Store().is_built_here(pulled.build_key)


def test_it_is_not_published_as_ones_own(
    pulled: Package, pair: KeyPair, tmp_path: Path, trusting: Callable[..., None]
) -> None:
    url = (tmp_path / "ours").as_uri()
    with pytest.raises(
        PublishError, match=r"It was pulled from file://.* no pinned signer has signed it"
    ):
        plan_publication(pulled, url)
    trusting(pair)
    with pytest.raises(PublishError) as refused:  # for what else is wrong with it
        plan_publication(pulled, url)
    assert "It was pulled" not in str(refused.value)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("how", ["cp -r", "pull -o", "cp -r, without the note"])
def test_a_copy_of_it_is_not_ones_own_either(
    pulled: Package, how: str, remote: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, ours = tmp_path / "copy", (tmp_path / "ours").as_uri()
    if how == "pull -o":
        assert cli.main(["pull", remote, "-o", str(copy)]) == 11  # nobody validated it
    else:
        shutil.copytree(pulled.path, copy)
    assert Package.open(copy).unlisted() == []
    if how.endswith("note"):
        (copy / NOTE).unlink()
    whence = "is of unknown origin" if how.endswith("note") else f"was pulled from {remote}"
    assert cli.main(["publish", str(copy), ours, "--dry-run"]) == 1
    assert f"It {whence}" in capsys.readouterr().err
    assert cli.main(["publish", str(copy), ours, "--dry-run", "--of-others"]) == 1  # unvalidated
    assert whence not in capsys.readouterr().err


def test_a_copy_of_what_was_built_here_is_ones_own(
    models: Models, home: Path, tmp_path: Path
) -> None:
    ours = models.build(models.llama, home)
    shutil.copytree(ours.path, tmp_path / "copy")
    copy = Package.open(tmp_path / "copy").with_validation([], "none")  # as `validate` writes it
    assert is_as_good_as_ours(copy, Store())
    overwrite(copy.path / "tokenizer.json", b"{}")
    changed = [
        {**file, "digest": "sha256:" + "0" * 64} if file["path"] == "tokenizer.json" else file
        for file in copy.manifest["files"]
    ]
    other = replace(copy, manifest={**copy.manifest, "files": changed})
    assert not is_as_good_as_ours(other, Store())


def test_without_a_complete_origin_note_it_has_no_owner(pulled: Package, tmp_path: Path) -> None:
    overwrite(pulled.path / NOTE, b"{")
    with pytest.raises(PublishError, match="It is of unknown origin"):
        plan_publication(pulled, (tmp_path / "ours").as_uri())


@pytest.mark.parametrize("note", [None, b"", b'{"built_here": 1, "url": "x"}'])
def test_what_the_policy_refuses_is_not_used(
    pulled: Package,
    note: bytes | None,
    tmp_path: Path,
    trusting: Callable[..., None],
) -> None:
    """It was pulled before anybody was pinned; and a damaged note is no proof that it was built here."""
    if note is not None:
        overwrite(pulled.path / NOTE, note)
    trusting(make_pair(tmp_path, "ours"))
    with pytest.raises(TrustError, match="signed by a key that is not pinned"):
        qeff_zoo.load(pulled)
    with pytest.raises(TrustError, match="signed by a key that is not pinned"):
        qeff_zoo.load(pulled.build_key)
    with pytest.raises(TrustError, match="signed by a key that is not pinned"):
        find_usable(pulled.build_key)  # bench and perplexity
    with pytest.raises(TrustError, match="signed by a key that is not pinned"):
        export_bundle([pulled], tmp_path / "bundle.tar")
    assert not (tmp_path / "bundle.tar").exists()


def test_a_note_outside_of_the_store_proves_nothing(
    models: Models, home: Path, tmp_path: Path, trusting: Callable[..., None]
) -> None:
    """As of a folder that somebody sent; what lies in the store as our build does is used whatever is pinned."""
    ours = models.build(models.llama, home)
    trusting(make_pair(tmp_path, "ours"))
    assert qeff_zoo.load(ours).generate(["the"], generation_len=2)
    sent = tmp_path / "sent"
    models.copy(ours.path, sent)
    assert (sent / NOTE).exists()
    with pytest.raises(TrustError, match="is not signed"):
        qeff_zoo.load(sent)


def test_a_copy_has_no_note(models: Models, home: Path, tmp_path: Path) -> None:
    models.trace(models.llama, home)
    copy = qeff_zoo.build(models.llama, validate=False, output=tmp_path / "copy")
    assert sorted(copy.unlisted()) == []
    assert not (copy.path / NOTE).exists()
    assert qeff_zoo.load(copy).generate(["the"], generation_len=2)  # nobody is pinned: no warning


# --- whose remote, whose model -------------------------------------------------------------------


def kept(origin: str | None, **changes: Any) -> Package:
    """Put a package of `org/tiny` into the store, as one that was pulled from there or built here."""
    store = Store()
    with store.stage("pull") as staged:
        package = make(staged, **changes)
        where = BUILT_HERE if origin is None else origin_of(package, origin)
        return store.promote(staged, package.build_key, origin=where)


def test_a_package_of_another_remote_does_not_count(home: Path, tmp_path: Path) -> None:
    url = write_remote(tmp_path / "own", make(tmp_path / "listed", ctx_len=2048))
    other = kept("file:///elsewhere", ctx_len=8192)
    assert [candidate.remote for candidate in look_up(url, Store()).candidates] == [url]
    ours = kept(None, ctx_len=8192)
    assert ours.build_key == other.build_key
    assert ours.path in [candidate.here for candidate in look_up("org/tiny", Store()).candidates]


def test_a_package_that_calls_itself_like_a_model_is_none_of_it(home: Path, tmp_path: Path) -> None:
    spec = made_from({**SOURCE, "model_id": "stranger/other"})
    kept("file:///elsewhere", spec=spec, name="org/tiny")
    assert look_up("org/tiny", Store()).candidates == ()
    assert len(look_up("stranger/other", Store()).candidates) == 1


def test_a_display_name_does_not_hide_packages(home: Path) -> None:
    """A stranger's package has the name of ours, and was made from another model; or claims ours."""
    spec = made_from({**SOURCE, "model_id": "stranger/other"})
    reference = kept("file:///elsewhere", spec=spec, name="org/tiny")
    with pytest.raises(PackageError, match="No package at 'org/tiny'"):
        find_package("org/tiny")
    kept("file:///elsewhere", ctx_len=8192)
    ours = kept(None)
    assert find_package("org/tiny").path == ours.path
    variant = "ort-int4-pl128-cl4096-bs1"  # theirs, too
    assert find_package(variant).path == ours.path
    assert find_package(reference.build_key).path == reference.path


def test_an_unsigned_package_never_hides_a_signed_one(
    home: Path,
    tmp_path: Path,
    pair: KeyPair,
    trusting: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signed, newer = (
        make(tmp_path / name, ctx_len=size) for name, size in (("a", 4096), ("b", 8192))
    )
    trust.sign(signed, key=pair.private)
    url = write_remote(tmp_path / "own", signed, newer, key=pair.private)
    monkeypatch.setenv("QEFF_ZOO_STORES", url)
    kept(url, ctx_len=8192)
    trusting(pair)
    found = resolve("org/tiny", {"ctx_len": 4096}, store=Store())
    assert found.chosen is not None
    assert found.chosen.entry.path == entry_of(signed).path
    (other,) = found.candidates[1:]  # one package, here and there
    assert "It is not signed" in other.difference


def test_a_remote_that_shows_nothing_hides_no_other(
    remote: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private repository looks empty to those who are not signed in; then nobody else's package is meant."""
    own = (tmp_path / "own").as_uri()
    monkeypatch.setenv("QEFF_ZOO_STORES", f"{own} {remote}")
    found = look_up("llama", Store())
    assert found.candidates == ()
    assert "has no index; expected one" in str(found.unanswered)
    monkeypatch.setenv("QEFF_ZOO_STORES", f"opt+{own} {remote}")
    (candidate,) = look_up("llama", Store()).candidates
    assert candidate.remote == remote


@pytest.mark.parametrize("state", ["known_bad", "yanked"])
def test_new_notices_are_checked_before_every_use(
    pulled: Package, remote: str, state: str, pair: KeyPair, trusting: Callable[..., None]
) -> None:
    """The index was asked for since; the package itself was not."""
    zoo = Path(remote.removeprefix("file://"))
    index = decode((zoo / INDEX_NAME).read_bytes())
    publish_notice(remote, index.entries[0].path, state, reason="wrong answers")
    assert open_remote(remote).snapshot()
    assert not Store().is_built_here(pulled.build_key)
    if state == "yanked":
        with pytest.warns(UserWarning, match="It is yanked: wrong answers"):
            assert qeff_zoo.load(pulled).generate(["the"], generation_len=2)
        return
    with pytest.raises(TrustError, match="is known bad: wrong answers"):
        qeff_zoo.load(pulled)
    with pytest.raises(TrustError, match="is known bad: wrong answers"):
        export_bundle([pulled], pulled.path.parent / "x.tar")
    trusting(pair)
    assert not is_as_good_as_ours(pulled, Store())  # though its signer is pinned


def test_what_is_known_bad_is_pulled_no_more(
    pulled: Package, remote: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No remote is configured, so that only what its remote was last seen to say tells."""
    zoo = Path(remote.removeprefix("file://"))
    entry = decode((zoo / INDEX_NAME).read_bytes()).entries[0]
    assert cli.main(["lock", remote, "-o", str(tmp_path / "lock")]) == 0
    assert cli.main(["pull", remote, "-o", str(tmp_path / "copy")]) == 11  # nobody validated it
    publish_notice(remote, entry.path, "known_bad", reason="wrong answers")
    assert open_remote(remote).snapshot()
    (zoo / INDEX_NAME).unlink()
    capsys.readouterr()
    for argv, code in (
        (["pull", "llama"], 10),  # one can be built
        (["pull", "llama", "--key", pulled.build_key[4:20]], 20),
        (["pull", "--locked", str(tmp_path / "lock")], 11),  # exactly that one was asked for
        (["run", pulled.build_key, "--prompt", "the"], 1),
        (["run", str(tmp_path / "copy"), "--prompt", "the"], 1),
    ):
        found = cli.main(argv)
        printed_text = capsys.readouterr()
        assert "known bad: wrong answers" in printed_text.err, argv
        assert found in (code, 20), (argv, printed_text.err)


@pytest.mark.parametrize(
    "lie",
    [
        {"license": "mit"},
        {"finished": "2031-01-01T00:00:00Z"},
        {"model_type": "gpt2"},
        {"needs": {}},
        {"tested": {"onnxruntime": "0.1"}},
        {"signed": True},
        {"size": 7},
        {"validated": "task"},
    ],
    ids=lambda lie: next(iter(lie)),
)
@pytest.mark.parametrize("here", [False, True])
def test_index_entries_equal_their_manifests(
    lie: dict[str, Any], here: bool, home: Path, tmp_path: Path
) -> None:
    url = write_remote(tmp_path / "zoo", make(tmp_path / "package"))
    if here:
        pull(url)
    index = decode((tmp_path / "zoo" / INDEX_NAME).read_bytes())
    lying = replace(index, serial=9, tree=Leaf((replace(index.entries[0], **lie),)))
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(lying))
    with pytest.raises(RemoteError, match=f"that its {next(iter(lie))} is|Cannot read .*sigstore"):
        pull(url)
