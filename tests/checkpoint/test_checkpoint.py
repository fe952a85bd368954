# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint as tiny

from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.errors import CheckpointError
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import list_recipes, usual_text_type

Changes = Mapping[str, bytes | None]
NONE: Changes = {}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def local(folder: Path, changes: Changes = NONE, *, shards: int = 1) -> Path:
    """Write a checkpoint, with some files replaced, and those that are None left out."""
    content = {**tiny.files(shards), **changes}
    kept = {name: data for name, data in content.items() if data is not None}
    return tiny.write(folder / "org-model", kept)


def with_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> Path:
    """Write a checkpoint of two shards whose index was changed."""
    path = local(folder, shards=2)
    index = json.loads((path / INDEX).read_bytes())
    change(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))
    return path


def reopened(folder: Path) -> Checkpoint:
    return open_checkpoint(str(folder))


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = open_checkpoint(str(path), **options).tensors
    return str(caught.value)


def test_a_folder_has_a_description(tmp_path: Path) -> None:
    checkpoint = reopened(local(tmp_path))
    assert checkpoint.name == "org-model"
    assert (checkpoint.model_id, checkpoint.revision) == (None, None)
    assert checkpoint.model_type == "llama"
    assert checkpoint.architectures == ("LlamaForCausalLM",)
    assert checkpoint.config["hidden_size"] == 8
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.license == "apache-2.0"
    assert sorted(checkpoint.companions) == sorted(tiny.COMPANIONS)
    assert not checkpoint.needs_remote_code


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_tensors_come_from_every_shard(tmp_path: Path, shards: int) -> None:
    checkpoint = reopened(local(tmp_path, shards=shards))
    checkpoint.fetch()
    assert len(checkpoint.weight_files) == shards
    assert set(checkpoint.tensors) == set(tiny.tensors())
    for name, saved in tiny.tensors().items():
        assert checkpoint.read(name).tobytes() == saved.tobytes()
        checkpoint.release(name)
    assert checkpoint.read("embed.weight", 2, 4).shape == (2, 8)
    checkpoint.close()
    assert checkpoint.read("ids").tolist() == [0, 1, 2, 3, 4]


def test_one_file_goes_before_an_index(tmp_path: Path) -> None:
    folder = tiny.write(local(tmp_path), tiny.weights(shards=2))
    assert reopened(folder).weight_files == ("model.safetensors",)


def test_the_config_may_name_the_weights(tmp_path: Path) -> None:
    config = {**tiny.CONFIG, "transformers_weights": "other.safetensors"}
    data = tiny.weights()["model.safetensors"]
    folder = local(tmp_path, {"config.json": json.dumps(config).encode()})
    assert "names the weights file 'other.safetensors'" in refusal(folder)
    (folder / "other.safetensors").write_bytes(data)
    assert reopened(folder).weight_files == ("other.safetensors",)


def test_a_configuration_alone_is_enough_for_a_graph(tmp_path: Path) -> None:
    path = local(tmp_path) / "config.json"
    checkpoint = open_checkpoint(str(path), need_weights=False)
    assert checkpoint.model_type == "llama"
    assert checkpoint.name == "org-model"
    assert dict(checkpoint.companions) == {"config.json": path}
    assert "configuration alone" in refusal(path)


def test_a_single_file_of_a_checkpoint_names_its_folder(tmp_path: Path) -> None:
    folder = local(tmp_path)
    (folder / "other.txt").write_text("text")
    for name in ("model.safetensors", "other.txt"):
        assert f"Give the folder of the checkpoint: {str(folder)!r}" in refusal(folder / name)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "are pickle" in refusal(folder / "pytorch_model.bin")


def test_weights_are_not_needed_for_a_graph(tmp_path: Path) -> None:
    folder = local(tmp_path, {"model.safetensors": None})
    assert "No weights" in refusal(folder)
    assert open_checkpoint(str(folder), need_weights=False).model_type == "llama"


def test_remote_code_is_reported(tmp_path: Path) -> None:
    config = {**tiny.CONFIG, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    folder = local(tmp_path, {"config.json": json.dumps(config).encode()})
    assert reopened(folder).needs_remote_code


def test_a_path_that_exists_goes_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path / "org" / "name", tiny.files())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_checkpoint("org/name").folder == tmp_path / "org" / "name"
    assert open_checkpoint("~/org/name").name == "name"
    monkeypatch.chdir(tmp_path / "org" / "name")
    assert open_checkpoint(".").name == "name"


@pytest.mark.parametrize(
    "model",
    [
        *("./nothing", "/no/such/folder", "~/nothing", "~nobody-here/x", "a/b/c", "/" * 5000),
        *("nothing/", "org/nothing/", "org/config.json", "nothing.json"),
    ],
)
def test_a_path_that_does_not_exist_is_no_model_id(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert refusal(model).startswith(("No file or folder", "No config.json"))


@pytest.mark.parametrize(
    ("model", "near"),
    [
        ("./tiny-lama", "tiny-llama"),
        ("tiny-lama/", "tiny-llama"),
        ("~/tiny-lama", "tiny-llama"),
        ("./tiny-lama/config.json", "tiny-llama"),
        ("./modle.gguf", "model.gguf"),
    ],
)
def test_a_misspelled_path_has_a_suggestion(
    model: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny-llama").mkdir()
    (tmp_path / "model.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert f"Did you mean {str(tmp_path / near)!r}? Check" in refusal(model)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    assert "Leave the revision out" in refusal(local(tmp_path), revision="main")


WEIGHTS: Changes = {"model.safetensors": None}
REFUSED: dict[str, tuple[Changes, str]] = {
    "pickle": ({**WEIGHTS, "pytorch_model.bin": b"x"}, "Reading a pickle can run code"),
    "sharded pickle": ({**WEIGHTS, "pytorch_model-00001-of-1.bin": b"x"}, "are pickle"),
    "torch file": ({**WEIGHTS, "model.pt": b"x"}, "are pickle"),
    "lightning checkpoint": ({**WEIGHTS, "last.ckpt": b"x"}, "are pickle"),
    "gguf": ({**WEIGHTS, **dict.fromkeys(("a.gguf", "b.gguf"), b"x")}, "only GGUF"),
    "gguf without config": (
        {**WEIGHTS, "config.json": None, **dict.fromkeys(("a.gguf", "b.gguf"), b"x")},
        "only GGUF",
    ),
    "gguf damaged": ({**WEIGHTS, "a.gguf": b"x"}, "not a whole GGUF file"),
    "adapter": (
        {**WEIGHTS, "adapter_model.safetensors": b"x", "adapter_config.json": b"{}"},
        "has adapter_config.json: it is an adapter of a model, no whole model",
    ),
    "adapter with modules": (
        {**WEIGHTS, "adapter_config.json": b"{}", "modules.json": b"[]"},
        "Copy modules.json and the files that it lists into a copy of that model",
    ),
    "other names": ({**WEIGHTS, "consolidated.safetensors": b"x"}, "only other safetensors"),
    "no config": ({"config.json": None}, "No config.json in"),
    "no config, no weights": ({**WEIGHTS, "config.json": None}, "No config.json in"),
    "config no JSON": ({"config.json": b"{"}, "as JSON"),
    "config no text": ({"config.json": b"\xff\xfe"}, "as JSON"),
    "config nested": ({"config.json": b"[" * 100_000}, "as JSON"),
    "config a list": ({"config.json": b"[]"}, "holds a JSON list"),
    "no model_type": ({"config.json": b"{}"}, "has the model_type None"),
    "model_type a number": ({"config.json": b'{"model_type": 1}'}, "has the model_type 1"),
    "architectures no list": (
        {"config.json": b'{"model_type": "llama", "architectures": "Llama"}'},
        "has the architectures 'Llama'",
    ),
    "generation config no JSON": ({"generation_config.json": b"?"}, "generation_config.json"),
    "truncated": ({"model.safetensors": tiny.weights()["model.safetensors"][:-1]}, "not a whole"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_refused(tmp_path: Path, changes: Changes, reason: str) -> None:
    assert reason in refusal(local(tmp_path, changes))


@pytest.mark.parametrize(("name", "reason"), [("m.gguf", "GGUF"), ("m.bin", "pickle")])
def test_a_file_of_weights_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert reason in refusal(tmp_path / name)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = local(tmp_path, shards=2)
    (folder / SHARDS[1]).unlink()
    message = refusal(folder)
    assert "1 of 2 weight files are missing" in message
    assert SHARDS[1] in message


def test_a_link_to_nowhere_is_a_missing_shard(tmp_path: Path) -> None:
    folder = local(tmp_path, shards=2)
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[0]).symlink_to(tmp_path / "gone")
    assert "1 of 2 weight files are missing" in refusal(folder)


def test_tensors_that_the_index_invents_are_named(tmp_path: Path) -> None:
    folder = with_index(tmp_path, lambda index: index.update(invented=SHARDS[0]))
    message = refusal(folder)
    assert "lack 1 tensors that their index names" in message
    assert f"'invented' in '{SHARDS[0]}'" in message


def test_tensors_in_another_shard_than_in_the_index_are_named(tmp_path: Path) -> None:
    folder = with_index(tmp_path, lambda index: index.update({"half.weight": SHARDS[0]}))
    assert f"'half.weight' in '{SHARDS[0]}'" in refusal(folder)


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "x.bin", 3, "a\\b"]
)
def test_an_index_cannot_leave_the_folder(tmp_path: Path, shard: Any) -> None:
    folder = with_index(tmp_path, lambda index: index.update({"half.weight": shard}))
    assert "Expected a safetensors file in the checkpoint's folder" in refusal(folder)


@pytest.mark.parametrize("content", [b"{}", b'{"weight_map": {}}', b'{"weight_map": []}'])
def test_an_index_of_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = local(tmp_path, shards=2)
    (folder / INDEX).write_bytes(content)
    assert "names no shard" in refusal(folder)


def test_the_digest_of_weights_can_be_had_from_sha256sum(tmp_path: Path) -> None:
    folder = local(tmp_path, shards=2)
    lines = "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in SHARDS
    )
    expected = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    assert reopened(folder).weights_digest() == expected


def test_weights_are_digested_by_the_caller(tmp_path: Path) -> None:
    recorded: list[Path] = []

    def digest(path: Path) -> str:
        recorded.append(path)
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"

    checkpoint = reopened(local(tmp_path, shards=2))
    assert checkpoint.weights_digest(digest) == checkpoint.weights_digest()
    assert [path.name for path in recorded] == list(SHARDS)


def test_identity_is_content_and_names(tmp_path: Path) -> None:
    folder = local(tmp_path)
    before = reopened(folder)
    weights, companions = before.weights_digest(), before.companions_digest()
    tiny.write(folder, {"README.md": b"other", "LICENSE.txt": b"other", "optimizer.pt": b"x"})
    assert reopened(folder).companions_digest() == companions
    tiny.write(folder, {"tokenizer.json": b"{}"})
    assert reopened(folder).companions_digest() != companions
    tiny.write(folder, tiny.weights(seed=1))
    assert reopened(folder).weights_digest() != weights


def test_a_weights_file_that_goes_away_is_named(tmp_path: Path) -> None:
    checkpoint = reopened(local(tmp_path))
    (checkpoint.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"Cannot read '.*model\.safetensors'"):
        checkpoint.weights_digest()


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        (b'---\nlicense: "mit"\n---\n', "mit"),
        (b"\xef\xbb\xbf---\r\ntags:\r\n- a\r\nlicense: llama3.1 # its own\r\n---\r\n", "llama3.1"),
        (b"---\nlicense: other\nlicense_name: qwen\n---\ntext", "other"),
        (b"---\ntags: []\n---\nlicense: mit\n", None),
        (b"license: mit\n", None),
        (b"---\nlicense:\n- mit\n---\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_licence_is_that_of_the_card(
    tmp_path: Path, readme: bytes | None, expected: str | None
) -> None:
    assert reopened(local(tmp_path, {"README.md": readme})).license == expected


def test_importing_is_light() -> None:
    heavy = "('torch', 'transformers', 'numpy', 'huggingface_hub', 'tqdm', 'safetensors')"
    code = (
        f"import sys, qeff_zoo.checkpoint.opening; print([m for m in {heavy} if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


COMPOSED = [recipe for recipe in list_recipes() if usual_text_type(recipe)]


@pytest.mark.parametrize("recipe", COMPOSED, ids=lambda one: str(one.model_type))
def test_a_text_config_without_a_type_has_that_of_transformers(
    recipe: Recipe, tmp_path: Path
) -> None:
    """As MiniMax M3's: the changes before tracing are those of the language model's recipe."""
    from transformers import CONFIG_MAPPING

    from qeff_zoo.export import architectures

    architectures.register(recipe.model_type)
    text = {"model_type": recipe.model_type, "architectures": [*recipe.architectures[:1]]}
    (tmp_path / "config.json").write_text(json.dumps({**text, "text_config": {}}))
    found = read_config(tmp_path / "config.json")["text_config"]["model_type"]
    try:
        expected = CONFIG_MAPPING[recipe.model_type](text_config={}).text_config.model_type
    except KeyError:  # transformers' class has no usual one
        return
    assert found == expected
