# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Hub, by the genuine client against a Hub on the loopback."""

import json
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import tiny_checkpoint as tiny
from huggingface_hub import constants
from local_hub import LocalHub

from qeff_zoo.checkpoint import hub_snapshot
from qeff_zoo.checkpoint.hub_errors import hub_errors
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, StoreError

GoOffline = Callable[[], None]
MODEL = "alice/tiny"
WEIGHTS = "model.safetensors"


def refusal(model: str = MODEL, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(model, revision=revision)
    return str(caught.value)


def test_opening_fetches_no_weights(hub: LocalHub) -> None:
    commit = hub.commit(MODEL, tiny.files())
    checkpoint = open_checkpoint(MODEL)
    assert (checkpoint.name, checkpoint.model_id, checkpoint.revision) == (MODEL, MODEL, commit)
    assert sorted(checkpoint.companions) == sorted(tiny.COMPANIONS)
    assert all(path.is_file() for path in checkpoint.companions.values())
    assert checkpoint.license == "apache-2.0"
    assert checkpoint.weights_digest().startswith("sha256:")
    assert not hub.requests("_content")


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_mirror_may_list_no_trees(
    hub: LocalHub, go_offline: GoOffline, status: int, tmp_path: Path
) -> None:
    """Proxies in front of the Hub often serve files and the info of a model alone."""
    hub.commit(MODEL, tiny.files())
    hub.fault("GET", "/tree/", status=status, times=100)
    checkpoint = open_checkpoint(MODEL)
    assert sorted(checkpoint.companions) == sorted(tiny.COMPANIONS)
    assert all(path.is_file() for path in checkpoint.companions.values())
    checkpoint.fetch()
    assert checkpoint.read("norm.weight").size
    go_offline()
    assert open_checkpoint(MODEL).revision == checkpoint.revision


@pytest.mark.parametrize("shards", [1, 2])
def test_identity_is_one_on_the_hub_in_a_folder_and_offline(
    hub: LocalHub, tmp_path: Path, go_offline: GoOffline, shards: int
) -> None:
    hub.commit(MODEL, tiny.files(shards))
    remote = open_checkpoint(MODEL)
    folder = open_checkpoint(str(tiny.write(tmp_path / "copy", tiny.files(shards))))
    before = remote.weights_digest()
    remote.fetch()
    go_offline()
    offline = open_checkpoint(MODEL)
    assert offline.revision == remote.revision
    assert before == folder.weights_digest() == offline.weights_digest()
    assert remote.companions_digest() == folder.companions_digest()
    assert remote.companions_digest() == offline.companions_digest()
    offline.fetch()
    assert set(offline.tensors) == set(tiny.tensors())


def test_offline_digests_are_read_off_the_cache(hub: LocalHub, go_offline: GoOffline) -> None:
    hub.commit(MODEL, tiny.files())
    open_checkpoint(MODEL).fetch()
    go_offline()

    def never(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    assert open_checkpoint(MODEL).weights_digest(never).startswith("sha256:")


def test_weights_kept_as_text_are_fetched_for_their_digest(hub: LocalHub, tmp_path: Path) -> None:
    hub.commit(MODEL, tiny.files(), small=(WEIGHTS,))
    folder = open_checkpoint(str(tiny.write(tmp_path / "copy", tiny.files())))
    assert open_checkpoint(MODEL).weights_digest() == folder.weights_digest()


def test_fetching_reports_every_byte_once(hub: LocalHub) -> None:
    content = tiny.files(shards=3)
    hub.commit(MODEL, content)
    checkpoint = open_checkpoint(MODEL)
    reported: list[tuple[int, int]] = []
    checkpoint.fetch(lambda done, total: reported.append((done, total)))
    size = sum(len(content[name]) for name in checkpoint.weight_files)
    assert reported[-1] == (size, size)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    for name, saved in tiny.tensors().items():
        assert checkpoint.read(name).tobytes() == saved.tobytes()
    hub.log.clear()
    checkpoint.fetch(lambda *_: reported.clear())
    assert reported
    assert not hub.log


def test_cached_files_are_not_downloaded_again(hub: LocalHub) -> None:
    hub.commit(MODEL, tiny.files())
    open_checkpoint(MODEL).fetch()
    hub.log.clear()
    open_checkpoint(MODEL).fetch()
    assert not hub.requests("/resolve/")
    assert not hub.requests("_content")


def test_a_branch_that_moves_is_followed_at_the_next_opening(hub: LocalHub) -> None:
    first = hub.commit(MODEL, tiny.files())
    old = open_checkpoint(MODEL)
    second = hub.commit(MODEL, {**tiny.weights(seed=1), "tokenizer.json": b"{}"})
    new = open_checkpoint(MODEL)
    assert (old.revision, new.revision) == (first, second)
    assert old.weights_digest() != new.weights_digest()
    assert old.companions_digest() != new.companions_digest()
    old.fetch()  # still of its own commit
    assert old.read("norm.weight").tobytes() == tiny.tensors()["norm.weight"].tobytes()
    assert open_checkpoint(MODEL, revision=first).companions_digest() == old.companions_digest()


def test_a_branch_and_a_commit_are_revisions(hub: LocalHub) -> None:
    hub.commit(MODEL, tiny.files())
    commit = hub.commit(MODEL, tiny.files(seed=2), branch="v2")
    assert open_checkpoint(MODEL, revision="v2").revision == commit
    assert open_checkpoint(MODEL, revision=commit).revision == commit
    assert "No revision 'v3' in 'alice/tiny'" in refusal(revision="v3")
    assert "No revision" in refusal(revision="0" * 40)


def test_no_such_model(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No model 'alice/none'" in refusal("alice/none")
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    assert "No model 'alice/none'" in refusal("alice/none")


def test_a_misspelled_folder_has_a_suggestion(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_offline: GoOffline
) -> None:
    (tmp_path / "alice" / "tiny-llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'alice/tiny-llama'? Check" in refusal("alice/tiny-lama")
    assert "Did you mean" not in refusal("alice/none")
    go_offline()
    assert "Did you mean 'alice/tiny-llama'? Check" in refusal("alice/tiny-lama")


def test_a_path_is_refused_without_the_hub(hub: LocalHub) -> None:
    for model in ("./tiny", "/tiny", "~/tiny", "alice/tiny/", "a/b/c", "alice/tiny/config.json"):
        assert "No file or folder" in refusal(model)
    assert not hub.log


@pytest.mark.parametrize("model", ["", "a b", "-x/y", "x/" + "y" * 200])
def test_no_model_id(model: str) -> None:
    assert "is not a model id" in refusal(model)


def test_a_private_model_needs_its_owners_token(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(MODEL, tiny.files())
    hub.models[MODEL].private = True
    assert "for a private model run `hf auth login`" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    open_checkpoint(MODEL).fetch()
    assert {request.token for request in hub.requests("_content")} == {None}


def test_token_and_cache_are_arguments(
    hub: LocalHub, tmp_path: Path, go_offline: GoOffline
) -> None:
    hub.commit(MODEL, tiny.files())
    hub.models[MODEL].private = True
    place = {"token": "hf_alice", "cache_dir": str(tmp_path / "mine")}
    checkpoint = open_checkpoint(MODEL, **place)
    checkpoint.fetch()
    assert checkpoint.folder.is_relative_to(tmp_path / "mine")
    assert "hf_alice" not in repr(checkpoint.files)
    assert not (tmp_path / "hub-cache").exists()
    go_offline()
    assert open_checkpoint(MODEL, cache_dir=place["cache_dir"]).is_at_hand


def test_a_gated_model_is_refused_with_its_address(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(MODEL, tiny.files())
    hub.models[MODEL].gated = True
    assert f"Accept them at {hub.endpoint}/{MODEL}" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    assert "is gated" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    assert open_checkpoint(MODEL).model_type == "llama"


def test_a_wrong_token_is_reported(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(MODEL, tiny.files())
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    assert "with status 401" in refusal()


@pytest.mark.parametrize(
    ("removed", "added", "reason"),
    [
        (WEIGHTS, "pytorch_model.bin", "Reading a pickle can run code"),
        (WEIGHTS, "model-Q4_0.gguf model-Q8_0.gguf", "only GGUF"),
        (WEIGHTS, "consolidated.safetensors", "only other safetensors"),
        (WEIGHTS, "notes.txt", "No weights in 'alice/tiny' on the Hub at revision"),
        ("config.json", "notes.txt", "No config.json in 'alice/tiny' on the Hub at revision"),
        (f"config.json {WEIGHTS}", "model-Q4_0.gguf model-Q8_0.gguf", "only GGUF"),
    ],
)
def test_refused_before_any_large_file(
    hub: LocalHub, removed: str, added: str, reason: str
) -> None:
    there = {**dict.fromkeys(removed.split()), **dict.fromkeys(added.split(), b"x")}
    hub.commit(MODEL, {**tiny.files(), **there})
    assert reason in refusal()
    assert not hub.requests("_content")


def test_a_shard_that_the_hub_lacks_is_named_before_any_large_file(hub: LocalHub) -> None:
    hub.commit(MODEL, {**tiny.files(shards=3), "model-00002-of-00003.safetensors": None})
    assert "1 of 3 weight files are missing in 'alice/tiny' on the Hub" in refusal()
    assert not hub.requests("_content")


def test_damage_on_the_way_is_found_and_removed(hub: LocalHub) -> None:
    content = tiny.files()
    hub.commit(MODEL, content)
    hub.fault("GET", "/_content/", data=b"x" * len(content[WEIGHTS]))
    checkpoint = open_checkpoint(MODEL)
    with pytest.raises(CheckpointError, match="arrived damaged"):
        checkpoint.fetch()
    checkpoint.fetch()
    assert checkpoint.read("ids").tolist() == [0, 1, 2, 3, 4]


def test_a_full_disk_is_found_first(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(MODEL, tiny.files(shards=2))
    checkpoint = open_checkpoint(MODEL)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(StoreError, match=r"No room for the weights of 'alice/tiny': .* 100 free"):
        checkpoint.fetch()
    assert not hub.requests("_content")


def test_offline_without_a_cache(hub: LocalHub, go_offline: GoOffline) -> None:
    hub.commit(MODEL, tiny.files())
    go_offline()
    assert "is not in the cache" in refusal()
    assert "HF_HUB_OFFLINE is set" in refusal()
    assert not hub.log


def test_our_own_switch_is_as_good(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(MODEL, tiny.files())
    revision = open_checkpoint(MODEL, need_weights=False).revision
    hub.log.clear()
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    assert open_checkpoint(MODEL, need_weights=False).revision == revision
    assert "No weights in 'alice/tiny' in the offline cache" in refusal()
    assert not hub.log


@pytest.mark.parametrize(
    ("shards", "reason"), [(1, "No weights in"), (2, "2 of 2 weight files are missing in")]
)
def test_offline_without_the_weights(
    hub: LocalHub, go_offline: GoOffline, shards: int, reason: str
) -> None:
    hub.commit(MODEL, tiny.files(shards))
    checkpoint = open_checkpoint(MODEL)
    go_offline()
    assert f"{reason} 'alice/tiny' in the offline cache" in refusal()
    assert open_checkpoint(MODEL, need_weights=False).revision == checkpoint.revision
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        checkpoint.fetch()


def test_offline_with_a_part_of_the_tokenizer(hub: LocalHub, go_offline: GoOffline) -> None:
    pytest.importorskip("huggingface_hub", minversion="2.0", reason="keeps no list of files")
    hub.commit(MODEL, tiny.files())
    open_checkpoint(MODEL).companions["tokenizer.json"].unlink()
    go_offline()
    assert "lacks tokenizer.json, and the Hub was not reached" in refusal()


def test_a_hub_out_of_order_is_as_offline(hub: LocalHub) -> None:
    hub.commit(MODEL, tiny.files())
    online = open_checkpoint(MODEL)
    online.fetch()
    hub.fault("HEAD", "/resolve/", status=503, times=99)
    hub.fault("GET", "/api/", status=503, times=99)
    checkpoint = open_checkpoint(MODEL)
    assert checkpoint.revision == online.revision
    assert checkpoint.weights_digest() == online.weights_digest()


def test_a_hub_that_is_not_reached_is_named(hub: LocalHub) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    reason = f"{hub.endpoint} was not reached"
    with pytest.raises(CheckpointError, match=reason) as caught, hub_errors(MODEL, "main"):
        raise LocalEntryNotFoundError("no connection")
    assert isinstance(caught.value.__cause__, LocalEntryNotFoundError)


def test_a_hub_that_drops_requests_is_tried_twice(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    hub.fault("HEAD", "/resolve/", served=True, times=99)
    assert re.search(rf"{hub.endpoint} was not reached \(.+\)\. Expected", refusal())
    assert len(hub.requests("/resolve/", "HEAD")) == 2
    assert pauses == [1.0]
    assert not caplog.records


def test_a_hub_that_drops_one_request_is_reached(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    commit = hub.commit(MODEL, tiny.files())
    hub.fault("HEAD", "/resolve/", served=True)
    assert open_checkpoint(MODEL).revision == commit


def test_a_slow_failure_is_not_repeated(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(hub_snapshot, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    hub.fault("HEAD", "/resolve/", served=True, times=99)
    assert "was not reached" in refusal()
    assert len(hub.requests("/resolve/", "HEAD")) == 1


def test_a_cached_repository_without_config_needs_no_connection(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"model-Q8_0.gguf": gguf_file(tmp_path / "model.gguf"), ".gitattributes": b""}
    hub.commit("org/quantized", content)
    (tmp_path / "config.json").write_text(json.dumps({**tiny.CONFIG, "num_hidden_layers": 1}))
    named = {"gguf_file": "Q8_0", "config_from": str(tmp_path / "config.json")}
    online = open_checkpoint("org/quantized", **named)
    online.fetch()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # refuses connections, since it does not listen
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
            at_hub = getattr(constants, name)
            monkeypatch.setattr(constants, name, at_hub.replace(hub.endpoint, endpoint))
        monkeypatch.setattr(time, "sleep", lambda _: None)
        hub.log.clear()
        assert open_checkpoint("org/quantized", **named).revision == online.revision
        assert f"{endpoint} was not reached (" in refusal("alice/none")
    assert not hub.log


def test_a_file_of_a_repository_is_named_and_its_original_too(
    hub: LocalHub, tmp_path: Path, go_offline: GoOffline
) -> None:
    content = {"model-Q8_0.gguf": gguf_file(tmp_path / "model.gguf"), "README.md": b"# quantized"}
    commit = hub.commit("org/quantized", {**content, ".gitattributes": b""})
    original = tmp_path / "config.json"
    original.write_text(json.dumps({**tiny.CONFIG, "num_hidden_layers": 1}))
    named = {"gguf_file": "model-Q8_0.gguf", "config_from": str(original)}

    checkpoint = open_checkpoint("org/quantized", **named)

    assert (checkpoint.model_id, checkpoint.revision) == ("org/quantized", commit)
    for other in ({"gguf_file": "Q8_0"}, {}):  # by its quantization, or as the only one
        same = open_checkpoint("org/quantized", config_from=str(original), **other)
        assert (same.gguf, same.revision) == (checkpoint.gguf, commit)
    assert not hub.requests("_content")
    before = checkpoint.weights_digest()
    checkpoint.fetch()
    assert checkpoint.read("output_norm.weight").tolist() == [1.0] * 8
    go_offline()
    offline = open_checkpoint("org/quantized", **named)
    assert offline.weights_digest() == before
    assert "model.norm.weight" in offline.logical
    assert "other.gguf" in str(refused_file("other.gguf"))


def gguf_file(path: Path) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def refused_file(name: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint("org/quantized", gguf_file=name)
    return caught.value
