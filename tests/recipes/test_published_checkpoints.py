# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as they are published: classes, files and configs that transformers takes, and we took otherwise."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models
from runnable_package import edit_json
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

import qeff_zoo
from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.authors_forms import converted
from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract.selection import classes_of
from qeff_zoo.errors import CheckpointError, PlanError
from qeff_zoo.export.streaming import Streamed
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import find_recipe, list_recipes, recipe_for

WEIGHTS, HEAD = "model.safetensors", "lm_head.weight"
SHAPE = {"prefill_seq_len": 8, "ctx_len": 48}


def planned(source: Path, **choices: Any) -> Plan:
    return check(open_checkpoint(str(source)), Request(**choices))


@pytest.fixture
def llama(models: Models, tmp_path: Path) -> Path:
    return models.copy(models.llama, tmp_path / "llama")


# --- weights -------------------------------------------------------------------------------------


def test_a_head_with_own_values_is_used_whatever_the_config_ties(home: Path, llama: Path) -> None:
    """The reference is transformers' model of this very folder, which unties it too."""
    edit_json(llama / "config.json", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match=r"stores 'lm_head.weight' with own values.* are used"):
        package = qeff_zoo.build(llama, **SHAPE)
    assert package.validated == "checkpoint"


def test_a_head_with_own_values_is_calibrated_with(llama: Path) -> None:
    edit_json(llama / "config.json", tie_word_embeddings=True)
    streamed = Streamed(open_checkpoint(str(llama)), "text-generation")
    assert streamed.expressions[HEAD] == HEAD
    assert not streamed.doubled


@pytest.mark.parametrize("kind", ["head in the file", "head that is tied"])
def test_weights_with_a_head_generate_under_the_name_of_the_base_class(
    models: Models, home: Path, tmp_path: Path, kind: str
) -> None:
    tied = kind == "head that is tied"
    source = models.copy(models.tied if tied else models.llama, tmp_path / "source")
    edit_json(source / "config.json", architectures=["LlamaModel"])
    assert AutoModelForCausalLM.from_pretrained(source).lm_head.weight.any()
    plan = planned(source, **({"task": "text-generation"} if tied else {}))
    assert plan.recipe.task == "text-generation"
    assert (HEAD in load_file(source / WEIGHTS)) != tied


def test_the_base_class_of_a_recipe_that_only_generates(models: Models, tmp_path: Path) -> None:
    source = models.copy(models.checkpoint("phi3", "phi3"), tmp_path / "source")
    edit_json(source / "config.json", architectures=["Phi3Model"])
    assert planned(source).recipe.task == "text-generation"


def test_the_base_class_of_a_model_that_reads_images() -> None:
    recipe = find_recipe("llava")
    checkpoint: Any = SimpleNamespace(architectures=("LlavaModel",), names_at_hand=())
    assert classes_of(checkpoint, recipe, None) == ["LlavaForConditionalGeneration"]


def test_weights_without_a_head_embed(models: Models, tmp_path: Path) -> None:
    source = models.copy(models.llama, tmp_path / "source")
    AutoModel.from_pretrained(source).save_pretrained(source)
    assert planned(source).recipe.task == "feature-extraction"


def test_experts_that_mlx_stacked_in_floats_are_refused(llama: Path) -> None:
    weights = load_file(llama / WEIGHTS)
    weights["model.layers.0.mlp.switch_mlp.up_proj.weight"] = np.zeros((2, 4, 4), np.float32)
    save_file(weights, llama / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"is a float checkpoint of mlx-lm, as its tensor"):
        _ = open_checkpoint(str(llama)).tensors


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("liuhaotian/llava-v1.6-34b", "llava-hf/llava-v1.6-34b-hf"),
        ("llava-v1.5-13b", "llava-hf/llava-1.5-13b-hf"),
        ("liuhaotian/llava-v1.5-7b-lora", None),  # an adapter, which nobody converted
        ("lmms-lab/LLaVA-NeXT-Video-7B-DPO", "llava-hf/LLaVA-NeXT-Video-7B-DPO-hf"),
        ("lmms-lab/llava-onevision-qwen2-72b-ov-sft", "llava-hf/llava-onevision-qwen2-72b-ov-hf"),
        ("DAMO-NLP-SG/VideoLLaMA3-7B-Image", "lkhl/VideoLLaMA3-7B-Image-HF"),
        ("DAMO-NLP-SG/VideoLLaMA3-7B", None),  # other weights than those of images
        ("AIDC-AI/Ovis2-8B", None),
        ("ucaslcl/GOT-OCR2_0", "stepfun-ai/GOT-OCR-2.0-hf"),
    ],
)
def test_a_checkpoint_of_its_authors_code_has_a_converted_one(name: str, other: str | None) -> None:
    assert converted(name) == other


def test_quantized_weights_that_only_the_quantizers_own_file_describes(llama: Path) -> None:
    weights = load_file(llama / WEIGHTS)
    name = "model.layers.0.mlp.up_proj"
    weights[f"{name}.qweight"] = np.zeros((8, 96), np.int32)
    del weights[f"{name}.weight"]
    save_file(weights, llama / WEIGHTS)
    output = r"is quantized, as its tensor '.*qweight' shows, but its config.json has no"
    with pytest.raises(PlanError, match=output):
        planned(llama)
    (llama / "quantize_config.json").write_text('{"bits": 4, "group_size": 64, "sym": true}')
    with pytest.raises(
        PlanError, match=r"It has quantize_config.json: \{'bits': 4, 'group_size': 64\}"
    ):
        planned(llama)
    with pytest.raises(CheckpointError, match=output):  # as after a download
        _ = open_checkpoint(str(llama)).tensors


def test_a_config_of_quantization_beside_floats(home: Path, llama: Path) -> None:
    """Merged adapters of QLoRA are often saved so."""
    edit_json(
        llama / "config.json",
        quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True},
    )
    with pytest.warns(UserWarning, match="all its weights are floats, which are used as they are"):
        package = qeff_zoo.build(llama, **SHAPE)
    assert package.validated == "checkpoint"


def test_every_method_of_transformers_is_read_or_refused_with_advice() -> None:
    known = {
        name.removesuffix("_4bit").removesuffix("_8bit")
        for name in AUTO_QUANTIZATION_CONFIG_MAPPING
    }
    assert known <= {*formats.METHODS, *formats.REFUSED}
    for name in formats.REFUSED:
        assert "Use the unquantized checkpoint" in formats.problem_of({"quant_method": name})


# --- files ---------------------------------------------------------------------------------------


def test_an_adapter_is_no_model(llama: Path) -> None:
    (llama / WEIGHTS).rename(llama / "adapter_model.safetensors")
    (llama / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    output = r"is an adapter of 'org/base', no whole model.* Run `qeff-zoo build org/base --adapter"
    for _ in range(2):  # with and without a config beside it
        with pytest.raises(CheckpointError, match=output):
            planned(llama)
        (llama / "config.json").unlink(missing_ok=True)


def elsewhere(source: Path, folder: Path, name: Callable[[Path], str]) -> Path:
    """Make a folder of links to the files of a checkpoint, which have other names by then."""
    folder.mkdir()
    for path in source.iterdir():
        moved = source.parent / name(path)
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, moved)
        (folder / path.name).symlink_to(moved)
    return folder


@pytest.mark.parametrize("where", ["same names", "blobs"])
def test_a_folder_of_links_is_read(llama: Path, tmp_path: Path, where: str) -> None:
    (llama / "README.md").write_text("---\nlicense: mit\n---\n")
    (llama / "README.md").rename(tmp_path / "README.md")

    def place(path: Path) -> str:
        digest = hashlib.sha256(path.name.encode()).hexdigest()
        return f"blobs/{digest}" if where == "blobs" else f"same/{path.name}"

    folder = elsewhere(llama, tmp_path / "links", place)
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    with pytest.warns(UserWarning, match=r"are links to files in .*README.md is left out"):
        checkpoint = open_checkpoint(str(folder))
    assert {"config.json", "tokenizer.json"} <= checkpoint.companions.keys()
    assert "README.md" not in checkpoint.companions
    assert len(checkpoint.tensors) > 20


def test_links_to_what_is_no_model_file_are_refused(llama: Path, tmp_path: Path) -> None:
    secret = tmp_path / "credentials.json"
    secret.write_text("{}")
    (llama / "added_tokens.json").symlink_to(secret)
    with pytest.raises(CheckpointError, match=r"is a link to '.*credentials.json', and would be"):
        open_checkpoint(str(llama))
    (llama / "added_tokens.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"auth": "x"}))
    (llama / "1_Pooling").mkdir()
    (llama / "1_Pooling" / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"one that is called '1_Pooling/config.json'"):
        open_checkpoint(str(llama))


def test_links_inside_need_no_word(llama: Path) -> None:
    (llama / "tokenizer.json").rename(llama / "other")
    (llama / "tokenizer.json").symlink_to("other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "tokenizer.json" in open_checkpoint(str(llama)).companions


#: Recipes of which published checkpoints have other types in config.json.
RETYPED = [recipe for recipe in list_recipes() if recipe.variants or recipe.former_text_types]


@pytest.mark.parametrize("recipe", RETYPED, ids=lambda recipe: recipe.model_type)
def test_types_of_a_published_config_are_those_that_transformers_reads(
    recipe: Recipe, tmp_path: Path
) -> None:
    """Ministral 8B is published as Mistral with layer types, and Kimi K2.5's language model as Kimi K2."""
    tiny = recipe.tiny[0].config
    configs = [find_recipe(other).tiny[0].config for other in recipe.variants.values()]
    for former in recipe.former_text_types:
        text = {name: value for name, value in tiny["text_config"].items() if name != "model_type"}
        written = {"model_type": former} if former else {}
        configs.append({**tiny, "text_config": {**text, **written}})
    for config in configs:
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "model_type": recipe.model_type})
        )
        reference = AutoConfig.from_pretrained(tmp_path).to_dict()
        ours = read_config(tmp_path / "config.json")
        assert ours["model_type"] == reference["model_type"]
        assert types_of(ours) == types_of(reference)
        assert recipe_for(ours).transforms == recipe_for(reference).transforms


def types_of(config: Mapping[str, Any]) -> Any:
    return (config.get("text_config") or {}).get("model_type")
