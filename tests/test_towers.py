# SPDX-License-Identifier: Apache-2.0
"""Models whose towers are those of the package timm: as published, built, and asked; and what is said without it.

What needs timm runs in a part of its own of `scripts/test`, since with torchvision transformers takes other processors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from PIL import Image

from qeff_zoo import pipeline
from qeff_zoo.choices import Request
from qeff_zoo.cli import main
from qeff_zoo.errors import CheckpointError, ExportError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.image_rules import settings_of_timm
from qeff_zoo.registry import find_recipe
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

#: Ids in the tiny models of tokens that stand for pictures, and what is beside them.
WORDS = {"<image>": 200, "<video>": 201}


def tokenizer(**special: str) -> transformers.PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(257)}
    for word, number in WORDS.items():
        del words[f"w{number}"]
        words[word] = number
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(WORDS))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="w7", extra_special_tokens=special
    )


def processor(model_type: str, told: dict[str, Any]) -> Any:
    """Make transformers' processor, as a checkpoint of the type has it."""
    pictures: Any = transformers
    if model_type == "fast_vlm":
        seen = pictures.CLIPImageProcessorPil(**told)
        return transformers.LlavaProcessor(
            seen, tokenizer(image_token="<image>"), patch_size=64,
            vision_feature_select_strategy="full",
        )  # fmt: skip
    words = tokenizer(image_token="<image>", video_token="<video>")
    return transformers.PerceptionLMProcessor(
        transformers.PerceptionLMVideoProcessor(),
        transformers.PerceptionLMImageProcessor(**told), words, patch_size=14,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param("fast_vlm-base", marks=pytest.mark.release), "perception_lm-base"]
)
def test_a_published_checkpoint_answers_as_generate(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_type = name.removesuffix("-base")
    recipe = find_recipe(model_type)
    folder = tmp_path / "model"
    (tiny, *_) = recipe.tiny
    tiny_models.make(recipe, tiny, folder)
    named = "image_processor_type"
    told = {key: value for key, value in tiny.image_processor.items() if key != named}
    whole = processor(model_type, told)
    (folder / "preprocessor_config.json").unlink()
    whole.save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 130, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    prompt = "w3 <image> w5 w6"
    given = whole(text=prompt, images=[Image.fromarray(pixels)], return_tensors="pt")
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        right = model.generate(**given, max_new_tokens=8, do_sample=False, eos_token_id=None)
    package, store = tmp_path / "package", Store(tmp_path / "store")
    asked = Request(ctx_len=64)
    pipeline.build(str(folder), asked, validate=False, output=package, store=store)
    command = ["run", str(package), "--image", str(tmp_path / "picture.png"), "--json"]
    assert main([*command, "--generation-len", "8", "--prompt", prompt]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["token_ids"] == right[0, given["input_ids"].shape[1] :].tolist()


@pytest.mark.requiring("timm")
@pytest.mark.parametrize(
    "size", [(40, 50), (448, 448), (300, 1500), (1500, 300), (2100, 3000), (2, 5)]
)
def test_tiles_are_those_of_the_processor(size: tuple[int, int]) -> None:
    """Bit for bit as torchvision's."""
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    told = {"max_num_tiles": 16, "tile_size": 112}
    right = transformers.PerceptionLMImageProcessor(**told)([pixels], return_tensors="np")
    ours = image_processor({"image_processor_type": "PerceptionLMImageProcessor", **told})([pixels])
    np.testing.assert_array_equal(ours["pixel_values"], right["pixel_values"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ExportError, match=r"needs the package timm.*qeff-zoo\[timm\]"):
        pipeline.require_packages(find_recipe("fast_vlm"))


@pytest.mark.requiring("timm")
def test_a_checkpoint_of_timm_classifies_as_timm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the form in which timm's repositories are published: no `model_type`, no labels, and names of its own."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=1000).eval()
    told = {"input_size": [3, 160, 160], "interpolation": "bicubic", "crop_pct": 0.9}
    said = {
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
        "tag": "r160_in1k",
        "num_classes": 1000,
    }
    folder = tmp_path / "timm" / "test_vit.r160_in1k"
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)
    config = json.loads((folder / "config.json").read_text())
    assert not config.keys() & {"model_type", "architectures", "label_names"}
    config["pretrained_cfg"] |= told | said
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="num_classes in its model_args"):
        pipeline.build(str(folder))
    del config["model_args"]  # as older releases saved it, by which most are published
    (folder / "config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(0).integers(0, 256, (190, 230, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    settings = timm.data.resolve_data_config({}, pretrained_cfg=told | said)
    with torch.no_grad():
        given = timm.data.create_transform(**settings)(Image.fromarray(pixels))
        right = model(given[None])[0].softmax(-1).numpy()
    package, store = tmp_path / "package", Store(tmp_path / "store")
    pipeline.build(str(folder), validate=False, output=package, store=store)
    assert main(["run", str(package), "--image", str(tmp_path / "picture.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    best = timm.data.ImageNetInfo("imagenet-1k").index_to_description(int(right.argmax()))
    assert found["scores"][0] == {"label": best, "score": pytest.approx(right.max(), rel=1e-4)}


@pytest.mark.requiring("timm")
@pytest.mark.parametrize("size", [(40, 50), (64, 64), (31, 97), (97, 31), (500, 401), (3, 2)])
@pytest.mark.parametrize(
    "told",
    [
        {"crop_mode": "center", "crop_pct": 0.875, "interpolation": "bilinear"},
        {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bicubic"},
        {"crop_mode": "border", "crop_pct": 0.95, "interpolation": "lanczos"},
        {"crop_mode": "center", "crop_pct": 0.9, "input_size": [3, 48, 72]},
        {},
    ],
    ids=str,
)
def test_pictures_are_those_of_timm(size: tuple[int, int], told: dict[str, Any]) -> None:
    """Bit for bit."""
    told = {
        "input_size": [3, 64, 64],
        "mean": [0.485, 0.456, 0.406],
        "std": [0.2, 0.3, 0.4],
        **told,
    }
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    theirs = transformers.TimmWrapperImageProcessor(told)([Image.fromarray(pixels)])
    ours = image_processor(settings_of_timm(told))([pixels])
    np.testing.assert_array_equal(ours["pixel_values"], theirs["pixel_values"].numpy())
