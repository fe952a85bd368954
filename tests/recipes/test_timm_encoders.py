# SPDX-License-Identifier: Apache-2.0
"""Models whose towers are those of the package timm: as published, built, and asked; and what is said without it.

What needs timm runs in a part of its own of `scripts/test`, since with torchvision transformers takes other processors.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import tokenizers
import torch
import transformers
from fixtures_audio_text import RATE, recording
from fixtures_media_recipes import session_of
from PIL import Image

from qeff_zoo import pipeline, registry
from qeff_zoo.cli import main
from qeff_zoo.contract import for_task
from qeff_zoo.errors import CheckpointError, ExportError, GenerationError, MediaError
from qeff_zoo.media.families.timm_wrapper import settings_of_timm
from qeff_zoo.media.features import find
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(2)

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


def processor(model_type: str, settings: dict[str, Any]) -> Any:
    """Make transformers' processor, as a checkpoint of the type has it."""
    images: Any = transformers
    if model_type == "fast_vlm":
        recorded = images.CLIPImageProcessorPil(**settings)
        return transformers.LlavaProcessor(
            recorded, tokenizer(image_token="<image>"), patch_size=64,
            vision_feature_select_strategy="full",
        )  # fmt: skip
    words = tokenizer(image_token="<image>", video_token="<video>")
    return transformers.PerceptionLMProcessor(
        transformers.PerceptionLMVideoProcessor(),
        transformers.PerceptionLMImageProcessor(**settings), words, patch_size=14,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fast_vlm-base", "perception_lm-base"])
@pytest.mark.sampled(2)
def test_a_published_checkpoint_answers_as_generate(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_type = name.removesuffix("-base")
    recipe = find_recipe(model_type)
    folder = tmp_path / "model"
    (tiny, *_) = recipe.tiny
    tiny_models.make(recipe, tiny, folder)
    named = "image_processor_type"
    settings = {key: value for key, value in tiny.image_processor.items() if key != named}
    whole = processor(model_type, settings)
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
    requested = Request(ctx_len=64)
    pipeline.build(str(folder), requested, validate=False, output=package, store=store)
    command = ["run", str(package), "--image", str(tmp_path / "picture.png"), "--json"]
    assert main([*command, "--generation-len", "8", "--prompt", prompt]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["token_ids"] == right[0, given["input_ids"].shape[1] :].tolist()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Give a session of a tiny Gemma 3n that sees and hears, transformers' processor, and its model."""
    recipe, folder = (
        for_task(find_recipe("gemma3n"), "any-to-any"),
        tmp_path_factory.mktemp("gemma"),
    )
    config = {**recipe.tiny[0].config, "audio_soft_tokens_per_image": 17}
    case = parity.Case(recipe=recipe, tiny=replace(recipe.tiny[0], config=config))
    subject = parity.Subject(case.config, recipe)
    session: Any = session_of(case, subject)
    places = {"boi": 240, "image": 241, "eoi": 242, "boa": 245, "audio": 246, "eoa": 247}
    words = {f"w{number}": number for number in range(257)}
    written = {f"<{name}>": number for name, number in places.items()}
    for word, number in {"\n\n": 13, "\n\n\n\n": 14, **written}.items():
        words[word] = words.pop(f"w{number}")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "removed")
    special = {f"{name}_token": f"<{name}>" for name in places}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="w7", pad_token="w0", extra_special_tokens=special
    )
    reference: Any = transformers
    recorded = reference.SiglipImageProcessorPil(size={"height": 64, "width": 64})
    audio = reference.Gemma3nAudioFeatureExtractor(feature_size=8)
    whole = reference.Gemma3nProcessor(
        audio, recorded, fast, audio_seq_length=17, image_seq_length=4
    )
    whole.save_pretrained(folder)
    session.folder = folder
    session.tokenizer = session.names.tokenizer = Tokenizer.find(folder)
    return session, whole, subject.hf


@pytest.mark.requiring("timm")
def test_gemma_3n_answers_as_transformers_processor_and_generate(
    gemma: tuple[Any, Any, Any],
) -> None:
    """Of images and recordings beside one another, whose line breaks are read together."""
    session, process, model = gemma
    image = Image.fromarray(np.full((100, 130, 3), 77, np.uint8))
    audio_input = [recording(number, 0.87) for number in range(2)]
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    for text, count in {"w3 <audio><image> w4 <audio> w5": 1, "w3 <audio><audio> w4": 0}.items():
        shown = {"images": [image]} if count else {}
        given = process(text=text, audio=audio_input, **shown, return_tensors="pt")
        with torch.no_grad():
            right = model.generate(**given, **settings)
        (found,) = session.generate(
            text, audio=audio_input, **shown, generation_len=6, ignore_eos=True
        )
        assert found.token_ids == right[0, given["input_ids"].shape[1] :].tolist(), text


@pytest.mark.requiring("timm")
def test_audio_features_of_gemma_3n_are_independent_of_other_inputs(
    gemma: tuple[Any, Any, Any],
) -> None:
    """Those that transformers makes of it alone, what fills them up included; one that is too long has none."""
    session, process, model = gemma
    recordings = [
        recording(number, seconds) for number, seconds in enumerate((0.04, 0.15, 0.61, 1.2))
    ]
    made = [session.prepare_audio(one) for one in recordings]
    for one, read in zip(recordings, session.look(made), strict=True):
        given = process(text="<audio>", audio=[one], return_tensors="pt")
        with torch.no_grad():
            right = model.model(**given).audio_hidden_states[0].numpy()
        (found,) = read.features.values()
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max(), rtol=0)
    features = np.zeros((1, 150, 8), np.float32)
    long = {"input_features": features, "input_features_mask": np.ones((1, 150), bool)}
    with pytest.raises(GenerationError, match="has 19 rows of features; expected at most 17"):
        session.look([long])
    with pytest.raises(MediaError, match=r"has 30\.0 seconds; expected at most 30"):
        session.prepare_audio(np.zeros(480_001, np.float32))


@pytest.mark.parametrize("samples", [513, 640, 641, 16_000, 50_001])
@pytest.mark.parametrize(
    "more", [{}, {"preemphasis_htk_flavor": False, "per_bin_mean": [0.1] * 128}]
)
def test_features_of_gemma_3n_are_those_of_transformers(samples: int, more: dict[str, Any]) -> None:
    """Bit for bit."""
    extractor = transformers.Gemma3nAudioFeatureExtractor(**more)
    given = recording(samples, samples / RATE)
    reference = extractor([given], sampling_rate=RATE, return_tensors="np")["input_features"]
    ours = find(json.loads(extractor.to_json_string())).compute(given)
    np.testing.assert_array_equal(ours, reference[0])


@pytest.mark.requiring("timm")
@pytest.mark.parametrize(
    "size", [(40, 50), (448, 448), (300, 1500), (1500, 300), (2100, 3000), (2, 5)]
)
def test_tiles_are_those_of_the_processor(size: tuple[int, int]) -> None:
    """Bit for bit as torchvision's."""
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    settings = {"max_num_tiles": 16, "tile_size": 112}
    right = transformers.PerceptionLMImageProcessor(**settings)([pixels], return_tensors="np")
    ours = image_processor({"image_processor_type": "PerceptionLMImageProcessor", **settings})(
        [pixels]
    )
    np.testing.assert_array_equal(ours["pixel_values"], right["pixel_values"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ExportError, match=r"needs the package timm.*qeff-zoo\[timm\]"):
        registry.require_packages(find_recipe("fast_vlm"))


@pytest.mark.requiring("timm")
def test_a_checkpoint_of_timm_classifies_as_timm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the form in which timm's repositories are published: no `model_type`, no labels, and names of its own."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=1000).eval()
    given_settings = {"input_size": [3, 160, 160], "interpolation": "bicubic", "crop_pct": 0.9}
    content = {
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
        "tag": "r160_in1k",
        "num_classes": 1000,
    }
    folder = tmp_path / "timm" / "test_vit.r160_in1k"
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)
    config = json.loads((folder / "config.json").read_text())
    assert not config.keys() & {"model_type", "architectures", "label_names"}
    config["pretrained_cfg"] |= given_settings | content
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="num_classes in its model_args"):
        pipeline.build(str(folder))
    del config["model_args"]  # as older releases saved it, by which most are published
    (folder / "config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(0).integers(0, 256, (190, 230, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    settings = timm.data.resolve_data_config({}, pretrained_cfg=given_settings | content)
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
    "settings",
    [
        {"crop_mode": "center", "crop_pct": 0.875, "interpolation": "bilinear"},
        {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bicubic"},
        {"crop_mode": "border", "crop_pct": 0.95, "interpolation": "lanczos"},
        {"crop_mode": "center", "crop_pct": 0.9, "input_size": [3, 48, 72]},
        {},
    ],
    ids=str,
)
def test_images_equal_those_of_timm(size: tuple[int, int], settings: dict[str, Any]) -> None:
    """Bit for bit."""
    settings = {
        "input_size": [3, 64, 64],
        "mean": [0.485, 0.456, 0.406],
        "std": [0.2, 0.3, 0.4],
        **settings,
    }
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    reference = transformers.TimmWrapperImageProcessor(settings)([Image.fromarray(pixels)])
    ours = image_processor(settings_of_timm(settings))([pixels])
    np.testing.assert_array_equal(ours["pixel_values"], reference["pixel_values"].numpy())
