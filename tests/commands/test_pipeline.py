# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to a package that runs, whole: what Hugging Face generates, and what of it is work done twice."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import warm
from checkout import TINY_LLAMA
from fixtures_builds import TIMEOUT, Models, Probed, files_below, kept
from local_hub import LocalHub
from package_builder import overwrite
from runnable_package import package
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import CheckpointError, PackageError, ParityError, StoreError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import graphs, manifest_entries
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.store import Store
from qeff_zoo.targets.ort import OrtTarget
from qeff_zoo.targets.ort import session as ort_session

pytestmark = pytest.mark.turns(3)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PROMPTS = ["the quick brown", "a dog that jumps over words twice or thrice", "lazy"]
TEXTS = ["the lazy dog", "a text of words", "fox"]
CODE = ["def __init__(self", "Permission is hereby granted, free of charge"]


# --- what is expected -----------------------------------------------------------------------------
def greedy(checkpoint: Path, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Let transformers generate, one prompt at a time, in float32."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=length,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def encoded(checkpoint: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return [tokenizer(text)["input_ids"] for text in texts]


def assert_generates(
    built: Package, checkpoint: Path, prompts: list[str], length: int = 12
) -> None:
    """Check that text goes in and Hugging Face's greedy tokens come out."""
    session = qeff_zoo.load(built, threads=1)
    outputs = session.generate(prompts, generation_len=length)
    expected = greedy(checkpoint, encoded(checkpoint, prompts), length)
    assert [output.token_ids for output in outputs] == expected
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for output, ids in zip(outputs, expected, strict=True):
        assert output.text == tokenizer.decode(ids, skip_special_tokens=True)


def mean_embeddings(checkpoint: Path, texts: list[str]) -> Any:
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.stack(
            [
                model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
                for ids in encoded(checkpoint, texts)
            ]
        )


def stored(source: Path, target: Path, dtype: str, *, sharded: bool) -> Path:
    """Write a checkpoint again in another dtype, in one file or several."""
    auto = AutoModel if "Bert" in (source / "config.json").read_text() else AutoModelForCausalLM
    model = auto.from_pretrained(source, dtype=DTYPES[dtype])
    model.save_pretrained(target, max_shard_size="100KB" if sharded else "1GB")
    for file in source.iterdir():
        if not (target / file.name).exists() and file.suffix != ".safetensors":
            shutil.copyfile(file, target / file.name)
    assert (len(list(target.glob("*.safetensors"))) > 1) == sharded
    return target


def scaled(source: Path, target: Path, factor: float = 1.5) -> Path:
    """Write a fine-tune: the same architecture, other weights."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight *= torch.linspace(1, factor, len(model.model.norm.weight))
    shutil.copytree(source, target)
    model.save_pretrained(target)
    return target


def forbid_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tracing fail: all that is built from now on must find its graph in the store."""

    def refuse(*_: Any) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(graphs, "trace", refuse)


# --- end to end -----------------------------------------------------------------------------------
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("sharded", [False, True], ids=["single", "sharded"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sampled(3)
def test_a_decoder_generates_what_hugging_face_does(
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sharded: bool,
    tied: bool,
) -> None:
    source = models.tied if tied else models.llama
    models.trace(source, home)
    forbid_tracing(monkeypatch)
    checkpoint = stored(source, tmp_path / "checkpoint", dtype, sharded=sharded)

    built = package(checkpoint)

    assert_generates(built, checkpoint, PROMPTS)
    assert built.verify() == []
    assert built.path == home / "packages" / built.build_key
    assert [(entry.kind, entry.state) for entry in kept(home)] == [
        ("package", "complete"),
        ("graph", "complete"),
    ]


@pytest.mark.parametrize("sharded", [False, True], ids=["single", "sharded"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_encoder_embeds_as_hugging_face_does(
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sharded: bool,
) -> None:
    models.trace(models.bert, home)
    forbid_tracing(monkeypatch)
    checkpoint = stored(models.bert, tmp_path / "checkpoint", dtype, sharded=sharded)

    session = qeff_zoo.load(package(checkpoint, seq_lens=(16, 64)), threads=1)

    expected = mean_embeddings(checkpoint, TEXTS)
    np.testing.assert_allclose(session.embed(TEXTS), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "choices",
    [
        {"batch_size": 2},
        {"prefill_seq_len": 4, "ctx_len": 72},
        {"full_batch_size": 2},
        {"full_batch_size": 3, "prefill_seq_len": 8},
    ],
    ids=["rows", "chunks", "slots", "slots-and-chunks"],
)
def test_whatever_the_shape_the_answers_are_the_same(
    models: Models, home: Path, choices: dict[str, int]
) -> None:
    graph = {name: 2 for name in choices if name == "full_batch_size"}
    models.trace(models.llama, home, **graph)
    prompts = [*PROMPTS, "or", "there are twice the words that jump over a fox"]

    assert_generates(package(models.llama, **choices), models.llama, prompts, length=16)


def first_logits(built: Package, tokens: list[int]) -> Any:
    decoder = qeff_zoo.load(built, threads=1).decoder
    length = decoder.sizes.prefill_seq_len
    for start in range(0, len(tokens), length):
        logits = decoder.prefill({0: Piece(tokens[start : start + length], start)})
    return logits[0]


@pytest.mark.parametrize(("storage", "cosine"), [("int8", 0.999), ("int4", 0.95), ("w8a8", 0.998)])
def test_quantized_packages_run_and_stay_near(
    models: Models, home: Path, storage: str, cosine: float
) -> None:
    models.trace(TINY_LLAMA, home)
    choices = {"ctx_len": 128, "prefill_seq_len": 32}
    exact, built = package(TINY_LLAMA, **choices), package(TINY_LLAMA, weights=storage, **choices)

    (answer,) = qeff_zoo.load(built, threads=1).generate(CODE[:1], generation_len=8)
    assert len(answer.token_ids) == 8
    (tokens,) = encoded(TINY_LLAMA, CODE[1:])
    a, b = first_logits(exact, tokens), first_logits(built, tokens)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > cosine
    assert built.manifest["weights"]["storage"] == storage
    share = {"int8": 0.3, "int4": 0.2, "w8a8": 0.28}[storage]
    assert built.file("weights").stat().st_size < share * exact.file("weights").stat().st_size


def test_option_of_several_values_accepts_one(models: Models, home: Path) -> None:
    models.trace(models.llama, home, num_speculative_tokens=(2,))
    choices = {"weights": "w8a8", "ctx_len": 48, "validate": False}
    one = qeff_zoo.build(models.llama, format="lm_head=fp32", num_speculative_tokens=2, **choices)
    same = {"format": ["lm_head=fp32"], "num_speculative_tokens": (2,)}
    assert qeff_zoo.build(models.llama, **same, **choices).build_key == one.build_key
    assert "lm_head.weight" not in {matrix.name for matrix in one.programs[0].numerics.matrices}


def test_the_trained_example_generates_what_hugging_face_does(models: Models, home: Path) -> None:
    models.trace(TINY_LLAMA, home)

    assert_generates(package(TINY_LLAMA, ctx_len=128), TINY_LLAMA, CODE, length=24)


# --- what is not done twice -----------------------------------------------------------------------
def test_a_second_build_is_a_hit_that_imports_nothing_heavy(
    models: Models, home: Path, probe: Callable[..., Probed]
) -> None:
    models.trace(models.llama, home)
    built = package(models.llama)

    again = probe("build", models.llama, "--no-validate", "--json")

    answer = json.loads(again.stdout)
    assert (answer["path"], answer["build_key"]) == (str(built.path), built.build_key)
    assert answer["hit"] is True
    assert list(answer["seconds"]) == ["plan"]
    assert again.imported() == set()


def test_a_fine_tune_reuses_the_graph_without_a_trace(
    models: Models, home: Path, tmp_path: Path, probe: Callable[..., Probed]
) -> None:
    models.build(models.llama, home)
    tuned = scaled(models.llama, tmp_path / "tuned")

    made = probe("build", tuned, "--no-validate", "--json")

    answer = json.loads(made.stdout)
    assert not answer["hit"]
    assert len(kept(home, "graph")) == len(kept(home, "companions")) == 1
    assert_generates(Package.open(answer["path"]), tuned, PROMPTS[:1])
    assert made.imported(("onnxscript", "torch", "transformers")) == set()


def test_two_builds_at_once_make_one_package(models: Models, home: Path) -> None:
    arguments = [
        warm.PYTHON.executable,
        "-m",
        "qeff_zoo",
        "build",
        models.llama,
        "--no-validate",
        "--json",
    ]
    builds = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    done = [build.communicate(timeout=TIMEOUT) for build in builds]

    assert [build.returncode for build in builds] == [0, 0], done
    assert len({json.loads(stdout)["path"] for stdout, _ in done}) == 1
    assert sorted(entry.kind for entry in kept(home)) == ["graph", "package"]
    (entry,) = kept(home, "package")
    assert Package.open(entry.path).verify() == []
    assert_generates(Package.open(entry.path), models.llama, PROMPTS[:1])


def test_the_key_follows_the_content_and_not_the_place(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)
    forbid_tracing(monkeypatch)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    built = package(checkpoint)

    moved = checkpoint.rename(tmp_path / "moved")
    assert package(moved).path == built.path
    assert len(kept(home, "package")) == 1

    weights = moved / "model.safetensors"
    times = weights.stat()
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as an archiver restores them

    assert package(moved).build_key != built.build_key


def test_a_changed_tokenizer_makes_another_package_with_the_same_graph(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)
    forbid_tracing(monkeypatch)
    # Programs of changed sources are compiled again.
    monkeypatch.setattr(manifest_entries, "has_uncommitted_changes", lambda: False)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    built = package(checkpoint)

    (checkpoint / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.setattr(OrtTarget, "compile", None)  # nor compiled again
    other = package(checkpoint)

    assert other.build_key != built.build_key
    assert other.programs == built.programs
    assert other.verify() == []
    assert (other.path / "chat_template.jinja").read_text().startswith("{{ messages[0]")


def test_a_damaged_package_is_built_again(models: Models, home: Path) -> None:
    models.trace(models.llama, home)
    built = package(models.llama)
    overwrite(built.file("weights"), bytes(100))

    again = pipeline.build(str(models.llama), validate=False)

    assert not again.hit
    assert again.package.path == built.path
    assert again.package.verify() == []


@pytest.mark.parametrize("storage", ["fp32", "int4"])
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count")
@pytest.mark.sampled(2)
def test_every_byte_is_written_once(
    models: Models, home: Path, probe: Callable[..., Probed], storage: str
) -> None:
    models.trace(models.large, home)

    arguments = "build", models.large, "--no-validate", "--weights", storage, "--json"
    made = probe(*arguments, python=warm.PYTHON.executable)

    size = Package.open(json.loads(made.stdout)["path"]).size
    assert size > 8_000_000
    assert size <= made.written < size + 200_000


# --- validation -----------------------------------------------------------------------------------
def test_a_build_is_validated_and_takes_the_place_of_one_that_is_not(
    models: Models, home: Path, tmp_path: Path
) -> None:
    plain = models.build(models.llama, home)

    built = pipeline.build(str(models.llama))

    assert not built.hit  # nobody had compared that one
    assert built.package.path == home / "packages" / plain.path.name
    assert (plain.validated, built.package.validated) == ("none", "checkpoint")
    stages = {check["stage"] for check in built.package.manifest["validation"]}
    assert stages >= {"prefill", "decode", "text"}
    assert all(check["passed"] for check in built.package.manifest["validation"])
    assert built.package.verify() == []  # the evidence is part of it
    for validate in (True, False):
        again = pipeline.build(str(models.llama), validate=validate)
        assert (again.hit, again.package) == (True, built.package)


def test_a_package_that_is_wrong_is_not_kept(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)
    obtain = graphs.obtain

    def mixed_up(*arguments: Any) -> graphs.BoundGraph:
        graph = obtain(*arguments)
        key, value = (f"model.layers.2.self_attn.{part}_proj.weight" for part in "kv")
        swapped = {key: graph.bindings[value], value: graph.bindings[key]}
        return replace(graph, bindings={**graph.bindings, **swapped})

    monkeypatch.setattr(graphs, "obtain", mixed_up)
    with pytest.raises(ParityError, match="disagrees with Hugging Face") as caught:
        qeff_zoo.build(models.llama)

    assert kept(home, "package") == kept(home, "staging") == []
    (evidence,) = kept(home, "failed")
    assert repr(str(evidence.path)) in str(caught.value)
    failed = Package.open(evidence.path)
    assert failed.validated == "none"
    assert not all(check["passed"] for check in failed.manifest["validation"])
    _, plan = pipeline.make_plan(str(models.llama), Request())
    assert Store(home).lookup(plan.build_key) is None


def test_a_requested_pooling_equals_the_reference(models: Models, home: Path) -> None:
    built = qeff_zoo.build(models.bert, seq_lens=(16, 48), pooling="cls", normalize=True)

    assert built.validated == "checkpoint"
    embeddings = qeff_zoo.load(built, threads=1).embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)


# --- the package stands alone ---------------------------------------------------------------------
def test_the_tokenizer_travels(models: Models, home: Path) -> None:
    models.trace(models.llama, home)
    built = package(models.llama)

    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        assert (built.path / name).read_bytes() == (models.llama / name).read_bytes()
    session = qeff_zoo.load(built, threads=1)
    assert [session.encode(text) for text in PROMPTS] == encoded(models.llama, PROMPTS)
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    chat = [{"role": "user", "content": "fox"}]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert session.encode("fox", chat=True) == expected


def test_a_package_needs_neither_its_place_nor_its_checkpoint_nor_the_store(
    models: Models, home: Path, tmp_path: Path
) -> None:
    models.trace(models.llama, home)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")

    built = qeff_zoo.build(checkpoint, validate=False, output=tmp_path / "out")

    assert built.path == tmp_path / "out"
    assert kept(home, "package")[0].key == built.build_key
    shutil.rmtree(checkpoint)
    shutil.rmtree(home)
    moved = Package.open(built.path.rename(tmp_path / "moved"))
    assert moved.verify() == []
    assert not any(path.is_symlink() for path in moved.path.rglob("*"))
    assert_generates(moved, models.llama, PROMPTS[:1])


def test_an_output_folder_is_copied_to_once_and_never_over_other_things(
    models: Models, home: Path, tmp_path: Path
) -> None:
    models.trace(models.llama, home)
    first = qeff_zoo.build(models.llama, validate=False, output=tmp_path / "out")
    inode = first.file("weights").stat().st_ino

    again = qeff_zoo.build(models.llama, validate=False, output=tmp_path / "out")
    assert again.file("weights").stat().st_ino == inode

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(StoreError, match="holds something else"):
        qeff_zoo.build(models.llama, validate=False, output=tmp_path / "mine")
    assert files_below(tmp_path / "mine") == ["notes.txt"]


# --- export ---------------------------------------------------------------------------------------
def test_an_exported_graph_runs_in_stock_onnx_runtime(
    models: Models, home: Path, tmp_path: Path
) -> None:
    models.trace(models.llama, home)

    exported = pipeline.export(str(models.llama), tmp_path / "out")

    assert files_below(tmp_path / "out") == ["graph.onnx", "weights.safetensors"]
    onnx.checker.check_model(exported.path, full_check=True)
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    (tokens,) = encoded(models.llama, PROMPTS[1:2])
    feeds = {
        "input_ids": np.array([[*tokens, 0]]),
        "position_ids": np.array([[*range(len(tokens)), -1]]),  # the last one is padding
    }
    for wanted in session.get_inputs():
        if wanted.name.startswith("past_"):
            heads, width = wanted.shape[1], wanted.shape[3]
            feeds[wanted.name] = np.zeros((1, heads, 64, width), np.float32)
    (logits,) = session.run(["logits"], feeds)
    assert [logits[0, 0].argmax()] == greedy(models.llama, [tokens], 1)[0]


def test_a_config_alone_gives_the_graph(models: Models, home: Path, tmp_path: Path) -> None:
    config = tmp_path / "alone" / "config.json"
    config.parent.mkdir()
    shutil.copyfile(models.llama / "config.json", config)

    exported = pipeline.export(str(config.parent), tmp_path / "out", graph_only=True)
    of_file = pipeline.export(str(config), tmp_path / "of_file", graph_only=True)

    assert of_file.path.read_bytes() == exported.path.read_bytes()
    assert files_below(tmp_path / "out") == ["graph.onnx"]
    assert kept(home) == []
    # With any weights beside it, it is a graph that the checker accepts and ONNX Runtime loads.
    models.trace(models.llama, home)
    complete = pipeline.export(str(models.llama), tmp_path / "complete")
    bare = onnx.load(exported.path, load_external_data=False)
    full = onnx.load(complete.path, load_external_data=False)
    assert [node.op_type for node in bare.graph.node] == [node.op_type for node in full.graph.node]
    assert {(entry.name, tuple(entry.dims)) for entry in bare.graph.initializer} == {
        (entry.name, tuple(entry.dims)) for entry in full.graph.initializer
    }
    assert [item.name for item in bare.graph.input] == [item.name for item in full.graph.input]
    assert [function.name for function in bare.functions] == [f.name for f in full.functions]


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_config_alone_is_planned_but_not_built(
    models: Models, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(models.llama / "config.json", tmp_path / "config.json")
    place = str(tmp_path / name)

    assert main(["plan", place]) == 0
    shown = capsys.readouterr().out
    assert "build_key  none" in shown
    assert "sources.model.weights" not in shown
    assert main(["plan", place, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["build_key"] is None
    assert planned["fields"]["recipe.model_type"]["value"] == "llama"
    with pytest.raises(CheckpointError, match=r"plan` and .* require config.json alone"):
        pipeline.make_plan(place, Request())


@pytest.mark.parametrize("beside", ["model.safetensors.index.json", "pytorch_model.bin"])
def test_weights_that_cannot_be_read_are_not_taken_for_a_config_alone(
    models: Models, tmp_path: Path, beside: str
) -> None:
    shutil.copyfile(models.llama / "config.json", tmp_path / "config.json")
    (tmp_path / beside).write_text('{"weight_map": {"a": "model-1-of-1.safetensors"}}')

    with pytest.raises(CheckpointError, match=r"missing|pickle"):
        pipeline.make_plan(str(tmp_path), Request(), need_weights=False)


def test_an_export_does_not_touch_what_is_there(models: Models, home: Path, tmp_path: Path) -> None:
    models.trace(models.llama, home)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep me")

    with pytest.raises(StoreError, match="there already"):
        pipeline.export(str(models.llama), tmp_path / "out")

    assert files_below(tmp_path / "out") == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out"]


# --- from the Hub ---------------------------------------------------------------------------------
def test_a_hub_model_is_built_once_and_then_needs_no_network(
    models: Models, home: Path, hub: LocalHub, go_offline: Callable[[], None]
) -> None:
    files = {path.name: path.read_bytes() for path in models.llama.iterdir()}
    commit = hub.commit("org/tiny", files)
    models.trace(models.llama, home)

    pipeline.make_plan("org/tiny", Request())
    assert not hub.requests("model.safetensors")  # a plan downloads no weights
    built = qeff_zoo.build("org/tiny", validate=False)
    requested = len(hub.log)
    go_offline()
    again = pipeline.build("org/tiny", validate=False)

    assert again.hit
    assert len(hub.log) == requested
    assert again.package.path == built.path
    source = built.manifest["spec"]["sources"]["model"]
    assert (built.name, source["model_id"], source["revision"]) == ("org/tiny", "org/tiny", commit)
    assert_generates(built, models.llama, PROMPTS[:1])


def test_a_hub_revision_names_a_package_of_its_own(
    models: Models, home: Path, tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = hub.commit("org/tiny", {path.name: path.read_bytes() for path in models.llama.iterdir()})
    tuned = scaled(models.llama, tmp_path / "tuned")
    hub.commit("org/tiny", {"model.safetensors": (tuned / "model.safetensors").read_bytes()})
    models.trace(models.llama, home)
    forbid_tracing(monkeypatch)

    new = qeff_zoo.build("org/tiny", validate=False)
    pinned = qeff_zoo.build("org/tiny", revision=old, validate=False)

    assert_generates(new, tuned, PROMPTS[:1])
    assert_generates(pinned, models.llama, PROMPTS[:1])
    with pytest.raises(qeff_zoo.PackageError, match="names 2 packages"):
        qeff_zoo.find_package("org/tiny")


# --- the Python API -------------------------------------------------------------------------------
def test_the_api_finds_packages_by_folder_key_prefix_and_name(models: Models, home: Path) -> None:
    models.trace(models.llama, home)
    built = qeff_zoo.build(models.llama, validate=False, ctx_len=64, prefill_seq_len=8)

    assert isinstance(built, qeff_zoo.Package)
    for reference in (str(built.path), built.build_key, built.build_key[:12], built.name):
        assert qeff_zoo.find_package(reference) == built
    for reference in (built, built.path, str(built.path), built.build_key):
        (answer,) = qeff_zoo.load(reference, threads=1).generate("fox", generation_len=3)
        assert len(answer.token_ids) == 3
    with pytest.raises(qeff_zoo.PackageError, match="No package at 'nothing'"):
        qeff_zoo.load("nothing")


def test_the_api_lists_recipes() -> None:
    recipes = {recipe.model_type: recipe for recipe in qeff_zoo.list_recipes()}

    assert recipes["llama"] == qeff_zoo.find_recipe("llama")
    assert recipes["bert"].task == "feature-extraction"
    assert {"mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2", "falcon"} < {
        *recipes
    }


def test_the_manifest_records_options_and_results(models: Models, home: Path) -> None:
    models.trace(models.llama, home)
    built = qeff_zoo.build(models.llama, validate=False, ctx_len=48, weights="int8")

    assert (built.task, built.model_type, built.target) == ("text-generation", "llama", "ort")
    assert built.validated == "none"
    assert built.manifest["why"]["shape.ctx_len"] == "user"
    assert built.manifest["why"]["shape.prefill_seq_len"] == "derived: fits ctx_len"
    assert built.manifest["spec"]["shape"] == {
        "batch_size": 1,
        "ctx_len": 48,
        "prefill_seq_len": 48,
    }
    (program,) = built.manifest["programs"]
    states = [state["name"] for state in program["states"]]
    assert states == [f"past_{part}.{layer}" for layer in range(4) for part in ("key", "value")]
    assert [tensor["name"] for tensor in program["outputs"]] == ["logits"]
    _, plan = pipeline.make_plan(str(models.llama), Request(ctx_len=48, weights="int8"))
    assert plan.build_key == built.build_key
    assert Store(home).lookup(plan.build_key) == built


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_without_validation_a_package_is_opened_and_called_in_little_memory(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened: list[bool] = []
    open_graph = ort_session.open_graph

    def remember(*given: Any, prepack: bool, **more: Any) -> Any:
        opened.append(prepack)
        return open_graph(*given, prepack=prepack, **more)

    monkeypatch.setattr(ort_session, "open_graph", remember)
    qeff_zoo.build(getattr(models, name), validate=False)
    assert opened == [False]


def test_package_that_cannot_be_opened_is_not_promoted(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_badly(target: Any, *given: Any) -> Path:
        path: Path = compile_well(target, *given)
        path.write_bytes(path.read_bytes()[:-100])
        return path

    compile_well = OrtTarget.compile
    monkeypatch.setattr(OrtTarget, "compile", compile_badly)
    with pytest.raises(PackageError, match=r"ONNX Runtime \S+ cannot open"):
        qeff_zoo.build(models.llama, validate=False)
    assert files_below(home / "packages") == files_below(home / "staging") == []
