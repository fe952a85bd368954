# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a checkpoint, a package or a request is said in four parts, early, and leaves nothing behind.

The parts of a message: what failed, the value, what was expected, what to do next.
"""

import json
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from fixtures_builds import HEAVY, Models, Probed, files_below, kept
from fixtures_cli import run
from local_hub import LocalHub
from package_builder import overwrite
from safetensors.numpy import load_file, save_file

import qeff_zoo
from qeff_zoo import cli, pipeline
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import (
    CheckpointError,
    GenerationError,
    PackageError,
    PlanError,
    StoreError,
    UnsupportedModelError,
    ZooError,
)
from qeff_zoo.package import Package
from qeff_zoo.package.identity import tree_digest
from qeff_zoo.pipeline import graphs
from qeff_zoo.targets.ort import session
from qeff_zoo.weights import writing as weights

pytestmark = pytest.mark.turns(2)

WEIGHTS = "model.safetensors"


# --- helpers --------------------------------------------------------------------------------------
def forbid(monkeypatch: pytest.MonkeyPatch, *steps: tuple[Any, str]) -> None:
    """Make expensive steps fail the test."""

    def refuse(*_: Any) -> None:
        raise AssertionError("an expensive step was taken before the input was refused")

    for module, name in steps:
        monkeypatch.setattr(module, name, refuse)


TRACE, WRITE, HASH = (graphs, "trace"), (weights, "write"), (Checkpoint, "weights_digest")


def edit(folder: Path, **changes: Any) -> None:
    """Change a checkpoint's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shard(folder: Path, count: int = 3) -> list[str]:
    """Store a checkpoint's weights in several files; give their names."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    place = {key: names[number % count] for number, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensors[key] for key in tensors if place[key] == name}, folder / name)
    index = {"metadata": {}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return names


def alter(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a checkpoint's tensors."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def assert_message(error: ZooError, *parts: str) -> None:
    """Check that a message has its parts, in sentences."""
    message = str(error)
    assert [part for part in parts if part not in message] == [], message
    assert len(parts) >= 4
    assert not message[0].islower()
    assert message.endswith(".")
    assert "!" not in message


def assert_nothing(home: Path, *allowed: str) -> None:
    """Check that a store holds nothing that a later build could take for done, nor rubbish."""
    assert [entry.kind for entry in kept(home)] == [*allowed]
    folders = {"packages", "staging", "failed"} | ({"graphs"} - {f"{kind}s" for kind in allowed})
    assert [name for folder in folders for name in files_below(home / folder)] == []


# --- checkpoints ----------------------------------------------------------------------------------
def unknown_type(folder: Path) -> None:
    edit(folder, model_type="lama", architectures=["LamaForCausalLM"])


def remote_code(folder: Path) -> None:
    code = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    edit(folder, model_type="own", architectures=["OwnForCausalLM"], auto_map=code)
    (folder / "modeling_own.py").write_text("raise SystemExit('the code of a checkpoint was run')")


def remote_class(folder: Path) -> None:
    edit(folder, architectures=["OwnLlama"], auto_map={"AutoModelForCausalLM": "own.OwnLlama"})
    (folder / "own.py").write_text("raise SystemExit('the code of a checkpoint was run')")


def missing_shard(folder: Path) -> None:
    (folder / shard(folder)[1]).unlink()


def shards_of_two_models(folder: Path) -> None:
    first, second, _ = shard(folder)
    shutil.copyfile(folder / first, folder / second)


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1000])


def truncated_header(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:100])


def corrupt_header(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[8:10] = b"!!"
    (folder / WEIGHTS).write_bytes(content)


def web_page(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"<!DOCTYPE html><title>404</title>" * 20)


def overlapping(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    names = sorted(name for name in header if name != "__metadata__")
    header[names[0]]["data_offsets"][1] += 4
    text = json.dumps(header).encode().ljust(length + 64)
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama",')


def unreadable(folder: Path) -> None:
    edit(folder, quantization_config={"quant_method": "aqlm"})


def quantized(folder: Path) -> None:
    edit(folder, quantization_config={"quant_method": "awq", "bits": 4})
    alter(folder, lambda tensors: tensors.update(strange=np.zeros(8, np.int8)))


Bad = namedtuple("Bad", "damage error says left", defaults=[()])  # `left`: what stays in the store

# Refused before anything is traced or written. What the messages of a row must have: the four parts.
EARLY = [
    Bad(unknown_type, UnsupportedModelError,
        ("No recipe", "'lama'", "Did you mean 'llama'", "Run `qeff-zoo list`")),
    Bad(remote_code, UnsupportedModelError,
        ("needs Python code of its own", "'own'", "Expected a model that transformers implements", "qeff-zoo list")),
    Bad(remote_class, PlanError,
        ("has architecture", "'OwnLlama'", "covers LlamaForCausalLM", "Use a checkpoint of one of those")),
    Bad(missing_shard, CheckpointError,
        ("missing in", "model-00002-of-00003.safetensors", "Expected every shard", "Get the missing files")),
    Bad(shards_of_two_models, CheckpointError,
        ("and again in", "model-00002-of-00003.safetensors", "Expected every tensor once", "Remove the shard")),
    Bad(truncated, CheckpointError,
        ("not a whole safetensors file", WEIGHTS, "Expected", "again")),
    Bad(truncated_header, CheckpointError,
        ("not a whole safetensors file", "it has 100 bytes", "Expected", "again")),
    Bad(corrupt_header, CheckpointError,
        ("not a whole safetensors file", "its header does not parse", "Expected", "again")),
    Bad(web_page, CheckpointError, ("not a whole safetensors file", WEIGHTS, "Expected", "again")),
    Bad(overlapping, CheckpointError, ("not a whole safetensors file", WEIGHTS, "Expected", "again")),
    Bad(pickled, CheckpointError,
        ("Refused the weights", "pytorch_model.bin", "Expected 'model.safetensors'", "convert with")),
    Bad(no_weights, CheckpointError, ("No weights in", "config.json", "Expected", "Get the whole checkpoint")),
    Bad(no_config, CheckpointError,
        ("No config.json", "model.safetensors", "Expected a checkpoint as transformers writes it", "Give the folder")),
    Bad(broken_config, CheckpointError,
        ("Cannot read", "config.json", "Expected one JSON object", "Get the file again")),
    Bad(quantized, CheckpointError,
        ("is quantized with", "'awq'", "is stored so; 'strange' is I8", "Expected some", "Get the checkpoint again")),
    Bad(unreadable, PlanError,
        ("is quantized with", "'aqlm'", "can be read", "Use the unquantized checkpoint")),
]  # fmt: skip


@pytest.mark.parametrize("bad", EARLY, ids=lambda bad: bad.damage.__name__)
def test_a_bad_checkpoint_is_refused_early(
    bad: Bad, models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, TRACE, WRITE)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    bad.damage(checkpoint)
    before = {name: (checkpoint / name).read_bytes() for name in files_below(checkpoint)}

    with pytest.raises(ZooError) as caught:
        qeff_zoo.build(checkpoint, validate=False)

    assert caught.type is bad.error
    assert_message(caught.value, *bad.says)
    assert_nothing(home)
    assert before == {name: (checkpoint / name).read_bytes() for name in files_below(checkpoint)}


def wider(folder: Path) -> None:
    edit(folder, intermediate_size=100)


def without_a_tensor(folder: Path) -> None:
    alter(folder, lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"))


def transposed(folder: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    alter(folder, lambda tensors: tensors.update({name: np.ascontiguousarray(tensors[name].T)}))


DISAGREEING = [
    Bad(wider, CheckpointError,
        ("are not those of their config", "'model.layers.0.mlp.gate_proj.weight' is [96, 64] in the checkpoint",
         "[100, 64] in the model", "Check that config.json belongs to these weights")),
    Bad(without_a_tensor, CheckpointError,
        ("are not those of their config", "No tensor for 'model.layers.3.mlp.up_proj.weight' [96, 64]",
         "Expected one tensor of the right shape", "no shard is missing")),
    Bad(transposed, CheckpointError,
        ("are not those of their config", "'model.layers.1.mlp.down_proj.weight' is [96, 64] in the checkpoint",
         "[64, 96] in the model", "Check that config.json")),
]  # fmt: skip


@pytest.mark.parametrize("bad", DISAGREEING, ids=lambda bad: bad.damage.__name__)
def test_weights_that_disagree_with_their_config_are_all_named(
    bad: Bad, models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, tmp_path / "other")
    (traced,) = (tmp_path / "other").glob("graphs/*/graph.onnx")
    forbid(monkeypatch, WRITE)
    if (
        bad.damage is not wider
    ):  # the config is still that of this graph, which took seconds to trace
        monkeypatch.setattr(graphs, "trace", lambda *_: ir.load(traced))
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    bad.damage(checkpoint)

    with pytest.raises(ZooError) as caught:
        qeff_zoo.build(checkpoint, validate=False)

    assert caught.type is bad.error
    assert_message(caught.value, *bad.says)
    assert_nothing(home, *bad.left)


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "infinity"])
def test_weights_that_are_no_numbers_are_not_quantized(
    value: float, models: Models, home: Path, tmp_path: Path
) -> None:
    models.trace(models.llama, home)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    name = "model.layers.2.mlp.up_proj.weight"

    def damage(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)
        tensors[name][5, 5] = value

    alter(checkpoint, damage)
    with pytest.raises(CheckpointError) as caught:
        qeff_zoo.build(checkpoint, validate=False, weights="int4")

    assert_message(
        caught.value, "Cannot store", name, "in 4 bits", "Expected finite numbers", "Get the checkpoint again"
    )  # fmt: skip
    assert_nothing(home, "graph")


def test_a_pickle_on_the_hub_is_refused_before_it_is_downloaded(
    models: Models, home: Path, hub: LocalHub
) -> None:
    files = {path.name: path.read_bytes() for path in models.llama.iterdir()}
    hub.commit("org/old", {**files, WEIGHTS: None, "pytorch_model.bin": files[WEIGHTS]})

    with pytest.raises(CheckpointError, match=r"which are pickle: pytorch_model\.bin"):
        qeff_zoo.build("org/old")

    assert not hub.requests("pytorch_model.bin")
    assert_nothing(home)


def test_choices_that_conflict_are_all_named_before_a_download(
    models: Models, home: Path, hub: LocalHub
) -> None:
    hub.commit("org/tiny", {path.name: path.read_bytes() for path in models.llama.iterdir()})
    with pytest.raises(PlanError) as caught:
        qeff_zoo.build(
            "org/tiny", target="tpu", weights="int3", ctx_len=4096, batch_size=2, full_batch_size=4, seq_lens=(8,)
        )  # fmt: skip

    problems = caught.value.problems
    for part in (
        "--target is 'tpu', expected one of ort",
        "--weights is 'int3', expected one of fp32, int8, int4",
        "--ctx-len is 4096, but 'org/tiny' has 128 positions. Choose at most 128",
        "--batch-size 2 and --full-batch-size 4 exclude each other",
        "--seq-lens does not apply to text-generation. Leave it out",
    ):
        assert len([problem for problem in problems if part in problem]) == 1, problems
    assert len(problems) == 5
    assert str(caught.value).splitlines() == problems
    assert not hub.requests(WEIGHTS)
    assert not home.exists()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"ctx_len": 129}, ("--ctx-len", "is 129", "128 positions", "Choose at most 128")),
        ({"prefill_seq_len": 200}, ("--prefill-seq-len", "is 200", "than the context of 128", "Choose at most 128")),
        ({"ctx_len": 32, "prefill_seq_len": 33}, ("--prefill-seq-len", "is 33", "context of 32", "Choose at most 32")),
        ({"batch_size": 0}, ("--batch-size", "is 0", "expected at least 1", "--batch-size")),
        ({"profile": "fast"}, ("--profile", "is 'fast'", "has latency", "Choose one")),
        ({"pooling": "cls"}, ("--pooling", "does not apply", "text-generation", "Leave it out")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_choice_that_the_model_cannot_have(
    choices: dict[str, Any],
    message: tuple[str, ...],
    models: Models,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = models.llama
    forbid(monkeypatch, HASH, TRACE)
    with pytest.raises(PlanError) as caught:
        qeff_zoo.build(checkpoint, **choices)

    assert_message(caught.value, *message)
    assert not home.exists()


@pytest.mark.parametrize(
    ("damage", "argv"),
    [
        (unknown_type, []),
        (remote_code, []),
        (pickled, []),
        (missing_shard, []),
        (truncated, []),
        (None, ["--ctx-len", "100000"]),
    ],
    ids=["unknown-type", "remote-code", "pickle", "missing-shard", "truncated", "ctx-len"],
)
def test_a_refusal_takes_no_torch(
    damage: Callable[[Path], None] | None,
    argv: list[str],
    models: Models,
    home: Path,
    tmp_path: Path,
    probe: Callable[..., Probed],
) -> None:
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    if damage:
        damage(checkpoint)

    done = probe("build", checkpoint, *argv)

    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("qeff-zoo: ")
    assert "Traceback" not in done.stderr
    assert done.imported(HEAVY) == set()
    assert_nothing(home)


# --- disk -----------------------------------------------------------------------------------------
def test_a_full_disk_is_noticed_before_anything_is_written(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)
    forbid(monkeypatch, WRITE)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 5000))

    with pytest.raises(StoreError) as caught:
        qeff_zoo.build(models.llama, validate=False)

    assert_message(
        caught.value,
        "Cannot write the package's weights",
        "5,000 are free",
        "expected room",
        "QEFF_HOME",
    )
    assert_nothing(home, "graph")


def test_a_full_disk_is_noticed_before_an_export_and_a_copy(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.build(models.llama, home)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 5000))

    with pytest.raises(StoreError, match=r"Cannot write the graph's weights .* 5,000 are free"):
        pipeline.export(str(models.llama), tmp_path / "out")
    with pytest.raises(StoreError, match=r"Cannot write package 'llama' .* 5,000 are free"):
        qeff_zoo.build(models.llama, validate=False, output=tmp_path / "out")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_a_store_that_cannot_be_written(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "file"))

    with pytest.raises(StoreError) as caught:
        qeff_zoo.build(models.llama, validate=False)

    assert_message(
        caught.value,
        "Cannot make a staging folder",
        str(tmp_path),
        "expected a folder",
        "set QEFF_HOME",
    )
    assert (tmp_path / "file").read_text() == "no folder"


# --- packages -------------------------------------------------------------------------------------
@pytest.fixture
def package(models: Models, home: Path, tmp_path: Path) -> Package:
    """Give a package outside of the store."""
    return Package.open(models.build(models.llama, home).path.rename(tmp_path / "package"))


def test_one_flipped_byte_of_any_file_is_found(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    for entry in package.manifest["files"]:
        path = package.path / entry["path"]
        good = path.read_bytes()
        for place in {0, len(good) // 2, len(good) - 1}:
            overwrite(path, good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
            code, out, err = run(["inspect", str(package.path), "--verify"], capsys)
            assert (code, err) == (1, "")
            assert entry["path"] in out.splitlines()[-1]
        overwrite(path, good)
    assert run(["inspect", str(package.path), "--verify"], capsys)[0] == 0


def test_a_flipped_byte_in_the_store_is_found(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = models.build(models.llama, home)
    content = bytearray(built.file("weights").read_bytes())
    content[-1] ^= 1
    overwrite(built.file("weights"), content)

    code, out, _ = run(["cache", "verify"], capsys)

    assert code == 1
    assert f" · {built.build_key[4:12]}: 'weights.safetensors'" in out


def manifest_of(package: Package, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a package's manifest, in a way that its own digest of the files is right."""
    manifest = json.loads((package.path / "manifest.json").read_text())
    change(manifest)
    manifest["tree"] = tree_digest(manifest["files"])
    overwrite(package.path / "manifest.json", json.dumps(manifest).encode())


def leave(path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][0]["path"] = path

    return change


BROKEN = {
    "path-up": (leave("../secret.json"), "'../secret.json'"),
    "path-up-inside": (leave("evidence/../../secret.json"), "'evidence/../../secret.json'"),
    "path-absolute": (leave("/etc/hostname"), "'/etc/hostname'"),
    "path-of-windows": (leave("C:\\secret.json"), "secret.json"),
    "program-outside": (lambda m: m["programs"][0].update(path="../graph.onnx"), "'../graph.onnx'"),
    "other-schema": (
        lambda m: m.update(schema="qeff-package/1"),
        "manifest schema 'qeff-package/1'",
    ),
    "no-schema": (lambda m: m.pop("schema"), "manifest schema None"),
    "unknown-field": (lambda m: m.update(extra=1), "'extra'"),
    "another-plan": (lambda m: m["spec"]["shape"].update(ctx_len=64), "build_key"),
    "false-evidence": (lambda m: m.update(validated="device"), "validated"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_manifest_that_cannot_be_is_refused_by_every_command(
    broken: str, package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    change, output = BROKEN[broken]
    (tmp_path / "secret.json").write_text("{}")
    manifest_of(package, change)
    monkeypatch.setattr(session, "open_graph", None)  # nothing of it may be opened

    for command in ("inspect {}", "run {} --prompt fox", "validate {}"):
        code, out, err = run(command.format(package.path).split(), capsys)
        assert (code, out) == (1, ""), command
        assert output in err
        assert str(package.path) in err
        assert "xpected" in err
        assert re.search(r"(Build or pull it again|or use the one that wrote it)\.\n$", err)
    with pytest.raises(PackageError):
        qeff_zoo.load(package.path)


def test_files_that_are_links_are_refused(package: Package, tmp_path: Path) -> None:
    weights_file = package.file("weights")
    weights_file.rename(tmp_path / "elsewhere")
    weights_file.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PackageError) as caught:
        Package.open(package.path)

    assert_message(
        caught.value, "is damaged", "'weights.safetensors'", "Expected what its manifest", "again"
    )


# --- requests -------------------------------------------------------------------------------------
def test_a_prompt_longer_than_the_context(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = models.build(models.llama, home)
    prompt = "fox " * 40  # 161 tokens

    with pytest.raises(GenerationError) as caught:
        qeff_zoo.load(package, threads=1).generate(["fox", prompt])

    assert_message(
        caught.value, "A prompt has", "161 tokens", "expected at most 127", "larger ctx_len"
    )
    code, out, err = run(["run", str(package.path), "--prompt", prompt], capsys)
    assert (code, out) == (1, "")
    assert err == f"qeff-zoo: {caught.value}\n"


def test_no_error_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
    models: Models,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours stay ours: only a ZooError is printed as the user's problem."""
    reports = tmp_path / "reports"
    reports.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(reports))

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(graphs, "obtain", fail)
    assert cli.main(["build", str(models.llama), "--no-validate"]) == 1
    assert "should not: KeyError: 'a bug'." in capsys.readouterr().err
    (report,) = reports.iterdir()
    assert 'raise KeyError("a bug")' in report.read_text()
    assert_nothing(home)
