# SPDX-License-Identifier: Apache-2.0
"""Every published processor and config: prompts and images become what transformers' own objects make of them.

A file in `tests/published/` is tested once it is there: arrays of awkward images, ids of prompts and chats, and logits
behind them, of the published config made small. The programs run in PyTorch, as in `test_media_recipes`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mutated_processors
import numpy as np
import parity
import published_processors as published
import pytest
import torch
from fixtures_published import SIZES, Opened, image, opened
from spelled_torchvision import spelled_out
from transformers.models.smolvlm import processing_smolvlm

from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import find
from qeff_zoo.errors import ParityError
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient import processor_outputs
from qeff_zoo.registry import list_recipes, recipe_for
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.validation.content.image_arrays import compare, difference

AWKWARD = (401, 623), (5, 90), (1200, 300), (1, 1)


#: Types whose published shape their recipe's tiny model does not have: logits are compared, too.
SHAPED = {
    *("aria", "cohere2_vision", "gemma4_unified", "idefics2", "kimi_k25", "lfm2_vl", "lighton_ocr"),
    *("llama4", "llava_pixtral", "minicpm_ocr", "minimax_m3_vl", "mistral3", "nemotron_h_omni"),
}


#: SmolVLM's processor does not load without a package that writes times of videos as words.
processing_smolvlm.num2words = processing_smolvlm.num2words or str
#: The same model as of another type, whose prompts are compared: images that are large take seconds.
TWIN = {
    "deepseek_vl_hybrid": "deepseek_vl",
    "got_ocr2": "pp_chart2table",
    "llava_next_video": "llava_next",
    "smolvlm": "idefics3",
}

#: Sizes that transformers refuses: one pixel of three channels may be three of one.
REFUSED = {"video_llava": {(1, 1)}}

#: Differences of arrays, of types whose images are resized in float32.
WITHIN = {"nemotron_h_omni": 1e-5}

#: Of numpy, where transformers gives it a tensor.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
NAMES = [pytest.param(name, marks=pytest.mark.together(name)) for name in published.names()]


@pytest.fixture(autouse=True)
def _functions_of_torchvision() -> Iterator[None]:
    with spelled_out():
        yield


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(5)
def test_prompts_and_images_are_those_of_the_published_processor(name: str) -> None:
    """The last logits of one prompt, too, which another image changes."""
    if name in TWIN and not parity.EVERY:
        pytest.skip(f"as of {TWIN[name]}")
    one = opened(name)
    prompts = one.facts["prompts"][: 1 if one.facts.get("large") else None]
    for number, prompt in enumerate(prompts):
        shown = one.shown(prompt)
        right = one.process(prompt, shown)
        made = one.session.request(prompt, images=shown, generation_len=1)
        assert list(made.prompt) == right["input_ids"][0].tolist()
        compare_features(one, [made], right)
        if number == 0 and (parity.EVERY or name in SHAPED):
            compare_logits(one, made, right)


def compare_features(one: Opened, made: list[Any], right: Any) -> None:
    """Compare features of images with those that QEfficient's classes read from the processor's output."""
    found = processor_outputs.prompts_of(one.session, right)
    for want, (tokens, images) in zip(made, found, strict=True):
        got = one.session.request_written_out(tokens, images, generation_len=1)
        assert got.prompt == want.prompt
        assert got.spans.places.tolist() == want.spans.places.tolist()
        for name, values in want.spans.features.items():
            bound = 1e-5 * max(1, np.abs(values).max())
            np.testing.assert_allclose(got.spans.features[name], values, atol=bound, rtol=0)


@pytest.mark.parametrize("name", ["idefics2", "llava_onevision"])
def test_padding_of_a_batch_is_no_image(name: str) -> None:
    """Processors pad images of several prompts to as many tiles, or as many images."""
    one = opened(name)
    prompts = one.facts["prompts"]
    shown = [one.shown(prompt) for prompt in prompts]
    flat = shown if one.facts.get("nested") else [image for part in shown for image in part]
    one.processor.tokenizer.pad_token = next(iter(one.facts["tokens"]))
    right = one.processor(text=prompts, images=flat, padding=True, return_tensors="pt")
    each = zip(prompts, shown, strict=True)
    made = [one.session.request(text, images=part, generation_len=1) for text, part in each]
    compare_features(one, made, right)


def compare_logits(one: Opened, made: Any, right: Any) -> None:
    right = {
        name: value.float() if value.is_floating_point() else value for name, value in right.items()
    }
    negative = {
        name: -value if value.is_floating_point() else value for name, value in right.items()
    }
    with torch.no_grad():
        expected, other = (
            one.subject.hf(**settings, use_cache=False).logits[0, -1].numpy()
            for settings in (right, negative)
        )
    prompt, chunk, at = made.prompt, one.session.decoder.sizes.prefill_seq_len, 0
    while at < len(prompt):
        stop = made.spans.end(at, min(at + chunk, len(prompt)))
        pieces = {0: Piece(prompt[at:stop], at, made.spans)}
        (found,) = one.session.decoder.prefill(pieces).values()
        at = stop
    spread = np.abs(expected).max()
    assert np.abs(found - expected).max() < 5e-5 * spread
    assert np.abs(other - expected).max() > 1e-3 * spread


@pytest.mark.parametrize("name", NAMES)
def test_chats_are_those_of_the_published_processor(name: str) -> None:
    if not published.read(name).get("chat_template"):
        pytest.skip("published apart from its chat template")
    one = opened(name)
    shown = image(SIZES[0])
    parts = [{"type": "image", "image": shown}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": parts}]
    right = one.processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt"
    )
    made = one.session.request("What is it?", chat=True, images=[shown], generation_len=1)
    assert list(made.prompt) == right["input_ids"][0].tolist()


@pytest.mark.together("llava")
def test_documents_of_a_chat_follow_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tokenizer that adds one, as the template does not."""
    session, reference = opened("llava").session, opened("llava").processor
    monkeypatch.setattr(session, "document_cache", object())
    parts = session.encode_parts([{"role": "user", "content": "b"}], ["a"])
    messages = [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]
    right = reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    assert [token for part in parts for token in part] == np.ravel(right).tolist()


@pytest.mark.parametrize("name", published.names())
@pytest.mark.sampled(3)
def test_arrays_of_images_are_those_of_the_published_processor(name: str, tmp_path: Path) -> None:
    """Saved by hand, as most are, and by transformers."""
    reference, folders = saved(published.read(name), tmp_path)
    options = processors.options_of(reference)
    for folder in folders:
        ours = load_image_processor(folder)
        for size in set(AWKWARD[: 1 if name in TWIN else None]) - REFUSED.get(name, set()):
            within = WITHIN.get(name, 0)
            found = difference(ours, reference.image_processor, image(size), options, within)
            assert found is None, (folder, size)


@pytest.mark.parametrize("name", ["janus", "deepseek_vl"])
def test_images_that_are_not_padded_stay_as_long_and_wide(name: str, tmp_path: Path) -> None:
    facts = published.read(name)
    facts["preprocessor_config"]["do_pad"] = False
    reference, folders = saved(facts, tmp_path)
    options = processors.options_of(reference)
    for folder in folders:
        ours = load_image_processor(folder)
        assert difference(ours, reference.image_processor, image(SIZES[0]), options) is None


def saved(facts: Mapping[str, Any], folder: Path) -> tuple[Any, list[Path]]:
    """Write a published processor's files; return it, and its folders."""
    (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
    published.write(facts, folder)
    reference, folders = processors.load(folder), [folder]
    if None not in vars(reference).values():  # else transformers does not save it
        reference.save_pretrained(folder / "again")
        (folder / "again/config.json").write_bytes((folder / "config.json").read_bytes())
        folders.append(folder / "again")
    for one in folders:
        processors.write(one, one)
    return reference, folders


#: Types without published facts, by the reason.
LACKING = {
    "Its processor is that of a type with facts.": {
        *("glm4v_moe", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"),
    },
    "transformers has no processor under its name: checkpoints name another type's.": {
        *("cosmos3_omni", "fast_vlm", "glm_ocr", "glmga"),
    },
    "transformers' image processor needs torchvision, which is not installed.": {
        *("molmo2", "perception_lm", "phi4_multimodal", "step3p7"),
    },
    "Its vision encoder is timm's, which is not installed.": {"gemma3n"},
    "No public copy of its files was found; its image processor is of a class with facts.": {
        "granite4_vision",
    },
    "transformers has no processor: its checkpoints' code is one, see test_families_with_code.py and test_molmo.py.": {
        *("internvl_chat", "molmo"),
    },
}
SPEECH = {"automatic-speech-recognition", "speech-seq2seq", "audio-text-to-text"}


def test_every_type_has_published_facts_with_a_source_or_a_reason() -> None:
    """A new recipe that reads images or recordings brings facts, or its name stands above."""
    facts = [published.read(name) for name in (*published.names(), *published.names("audio"))]
    assert all(len(fact["source"]) > 40 for fact in facts)
    known = {fact["config"]["model_type"] for fact in facts}
    read = {recipe.model_type for recipe in list_recipes() if recipe.media or recipe.task in SPEECH}
    assert read - known == set.union(*LACKING.values())


def test_a_package_whose_arrays_differ_is_refused(tmp_path: Path) -> None:
    facts = published.read("mistral3")
    saved(facts, tmp_path)
    reference = processors.load(tmp_path)
    assert compare(tmp_path, reference)["images"].startswith("4 images bit for bit")
    held = json.loads((tmp_path / PROCESSOR_SETTINGS).read_text())
    held["image_processor"]["patch_size"] = 14
    (tmp_path / PROCESSOR_SETTINGS).write_text(json.dumps(held))
    with pytest.raises(
        ParityError, match=r"pixel_values has the shape .*PixtralImageProcessor|otherwise"
    ):
        compare(tmp_path, reference)


def test_processors_with_a_field_changed_make_the_same_arrays_or_are_refused() -> None:
    found = [mutated_processors.outcome(seed) for seed in range(24)]
    assert [what for kind, what in found if kind == "differs"] == []
    assert sum(kind == "same" for kind, _ in found) > 8


@pytest.mark.parametrize(
    ("name", "field", "token", "expected"),
    [
        pytest.param(name, *more, marks=pytest.mark.together(name))
        for name, *more in (
            ("llava_pixtral", "image_break_token", "<s>", "same"),
            ("llava_pixtral", "image_end_token", "[IMG]", "refused"),
            ("aya_vision", "tile_global_token", None, "same"),
            ("aya_vision", "tile_token", "full", "same"),
            ("llama4", "fake_image_token", "<|eot|>", "same"),
        )
    ],
)
def test_a_processor_config_with_other_tokens_writes_those(
    name: str, field: str, token: str | None, expected: str
) -> None:
    """A token of null is written as "None", as by transformers; the token of an image is refused."""
    prompt = published.read(name)["prompts"][0]
    kind, what = mutated_processors.prompt_with(name, field, token, prompt)
    assert kind == expected, what


@pytest.mark.parametrize(
    ("name", "settings", "refusal"),
    [
        ("aria", {"split_image": True}, "`split_image` is True"),
        ("llama4", {"resample": 1}, r"`resample` is 1. Expected 2 (bilinear)"),
        ("minicpm_ocr", {"small_image_upsize": "adaptive"}, "'adaptive', which measures"),
        ("minimax_m3_vl", {"image_processor_type": "SuperGlueImageProcessor"}, "as 'SuperGlue"),
        ("minimax_m3_vl", {}, ""),
    ],
)
def test_an_image_processor_that_is_not_computed_here_is_refused_by_the_plan(
    name: str, settings: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    facts = published.read(name)
    (tmp_path / "config.json").write_text(json.dumps(published.scaled(facts)))
    changed = {**facts["preprocessor_config"], **settings}
    published.write({**facts, "preprocessor_config": changed}, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path), need_weights=False)
    recipe = recipe_for(facts["config"])
    found = find(recipe.task).problems(checkpoint, recipe, Request())
    assert refusal in str(found) if refusal else found == []


def test_no_code_of_a_checkpoint_is_offered_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parts of a processor load from transformers alone."""
    facts = published.read("nemotron_h_omni")
    questions = []
    monkeypatch.setattr("builtins.input", lambda text="": questions.append(text) or "y")
    (tmp_path / "config.json").write_text(json.dumps(published.scaled(facts)))
    published.write(facts, tmp_path)
    for name in ("image_processing", "video_processing", "processing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of a checkpoint ran')")
    found = processors.load(tmp_path)
    assert questions == []
    assert type(found.image_processor).__module__.startswith("transformers.models.")


def test_a_processor_with_other_rows_than_its_model_is_refused_by_the_plan(tmp_path: Path) -> None:
    """transformers' BLIP-2 reads the first rows of an image alone then, or no image, without a word."""
    facts = published.read("blip_2")
    recipe = recipe_for(facts["config"])
    for rows in (32, 1, None):
        folder = tmp_path / str(rows)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        facts["processor_config"]["num_query_tokens"] = rows
        published.write(facts, folder)
        checkpoint = open_checkpoint(str(folder), need_weights=False)
        found = find(recipe.task).problems(checkpoint, recipe, Request())
        refusal = f"sets num_query_tokens to {rows}, and config.json to 32"
        assert (refusal in str(found)) == (rows != 32)
