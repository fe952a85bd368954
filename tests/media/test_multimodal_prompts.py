# SPDX-License-Identifier: Apache-2.0
"""Prompts with images are written as transformers' own processors write them, to the last token."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import parity
import pytest
import tokenizers
import torch
import transformers
from fixtures_media_recipes import session_of
from PIL import Image
from tiny_checkpoint import plain_class

from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.registry import find_recipe, recipe_for
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.text import tokenizer as own
from qeff_zoo.tasks.multimodal.prompt_settings import TokenNames
from qeff_zoo.tasks.multimodal.prompt_text import PromptText
from qeff_zoo.tasks.multimodal.session import listed

#: Of each type the token of a row and its id in the tiny model, and other tokens that its processor writes or asks for.
TOKENS: dict[str, tuple[str, int, dict[str, str]]] = {
    "gemma3": ("<image_soft_token>", 200, {"boi_token": "<boi>", "eoi_token": "<eoi>"}),
    "idefics2": ("<image>", 200, {"image_boundary_token": "<fake_token_around_image>"}),
    "lighton_ocr": (
        "<|image_pad|>",
        200,
        {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
    ),
    "llava_onevision": ("<image>", 200, {"video_token": "<video>"}),
    "minimax_m3_vl": (
        "]<]image[>[",
        200,
        {"begin": "]<]start of image[>[", "end": "]<]end of image[>["},
    ),
}


#: What processors are told.
SETTINGS = {
    "gemma3": {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 28, "width": 28},
    },
    **{
        name: find_recipe(name).tiny[0].image_processor
        for name in ("lighton_ocr", "llava_onevision")
    },
}


def tokenizer(model_type: str) -> tokenizers.Tokenizer:
    """Words of letters, and of newlines, as many as stand side by side; special tokens from `TOKENS`."""
    token, number, more = TOKENS[model_type]
    words = {f"w{at}": at for at in range(257)}
    special = {token: number} | {word: number + at for at, word in enumerate(more.values(), 1)}
    written = {"\n" * count: 99 + count for count in range(1, 6)} | {" ": 110}
    for word, at in (special | written).items():
        words.pop(f"w{at}")
        words[word] = at
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r"\n+|w[0-9]+| "), "isolated"
    )
    made.add_special_tokens([*special])
    return made


def processor(model_type: str) -> Any:
    token, _, more = TOKENS[model_type]
    settings = {
        k: v for k, v in SETTINGS.get(model_type, {}).items() if k != "image_processor_type"
    }
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(model_type),
        pad_token="w1",
        extra_special_tokens={"image_token": token, **more},
    )
    images: Any = transformers
    if model_type == "gemma3":
        return transformers.Gemma3Processor(
            images.Gemma3ImageProcessorPil(**settings), words, image_seq_length=4
        )
    if model_type == "idefics2":
        return transformers.Idefics2Processor(
            images.Idefics2ImageProcessorPil(do_image_splitting=True), words, image_seq_len=6
        )
    if model_type == "lighton_ocr":
        return transformers.LightOnOcrProcessor(
            images.PixtralImageProcessorPil(**settings), words, patch_size=7
        )
    with mock.patch.object(transformers.ProcessorMixin, "check_argument_for_proper_class"):
        # Its processor of videos, which is none here, needs torchvision.
        return transformers.LlavaOnevisionProcessor(
            images.LlavaOnevisionImageProcessorPil(**settings), words, None,
            num_image_tokens=16, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_1",
        )  # fmt: skip


def opened(model_type: str, folder: Path) -> Any:
    recipe = find_recipe(model_type)
    case = parity.Case(recipe=recipe, tiny=recipe.tiny[0])
    session = session_of(case, parity.Subject(case.config, recipe_for(case.config)))
    tokenizer(model_type).save(str(folder / "tokenizer.json"))
    plain_class(folder)
    session.tokenizer = session.names.tokenizer = own.Tokenizer.find(folder)
    if model_type in SETTINGS:
        session._processor = image_processor(SETTINGS[model_type])
    return session


@pytest.mark.parametrize(
    ("model_type", "prompts"),
    [
        ("gemma3", ["w3\n<boi>w4", "<boi>\nw4<boi>", "w3<boi><boi>w4"]),
        ("lighton_ocr", ["w3<|image_pad|>w4", "<|image_pad|><|image_pad|>"]),
        ("llava_onevision", ["w3<image>w4", "w3<image><image>w4", "<image>w3<image>w4<image>"]),
    ],
)
def test_prompts_are_those_of_the_processor(
    model_type: str, prompts: list[str], tmp_path: Path
) -> None:
    session = opened(model_type, tmp_path)
    reference = processor(model_type)
    marker = reference.image_token
    random = np.random.default_rng(0)
    for prompt in prompts:
        sizes = [(40, 30), (25, 60), (70, 33)][: prompt.count(marker)]
        pixels = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
        right = reference(
            text=prompt, images=[[*map(Image.fromarray, pixels)]], return_tensors="np"
        )
        prepared = session.prepare_all(pixels)
        for one, expected in zip(prepared, right["pixel_values"], strict=True):
            found = one["pixel_values"][0]
            np.testing.assert_array_equal(
                found, expected[..., : found.shape[-2], : found.shape[-1]]
            )
        made = session.request(prompt, images=pixels, generation_len=1)
        assert list(made.prompt) == right["input_ids"][0].tolist(), prompt


@pytest.mark.parametrize("prompt", ["w3<image>w4", "w3 <image><image> w4", "<image>\nw3<image>"])
def test_parts_of_idefics_2_stand_between_tokens(prompt: str, tmp_path: Path) -> None:
    """Of which neighbours share one, and a word behind one is a word of its own."""
    session, reference = opened("idefics2", tmp_path), processor("idefics2")
    pixels = [np.full((400, 500, 3), 9, np.uint8)] * prompt.count("<image>")
    right = reference(text=prompt, images=[[*map(Image.fromarray, pixels)]], return_tensors="np")
    size = {"height": 14, "width": 21}
    tiles = [np.zeros((1, 5, 3, *size.values()), np.float32)] * len(pixels)
    given = [
        {"pixel_values": tile, "pixel_attention_mask": np.ones((1, 5, *size.values()), np.int64)}
        for tile in tiles
    ]
    made = session.request(prompt, images=given, generation_len=1)
    assert list(made.prompt) == right["input_ids"][0].tolist()


def test_minimax_m3_has_tokens_around_an_image(tmp_path: Path) -> None:
    session = opened("minimax_m3_vl", tmp_path)
    kind: Any = transformers.models.minimax_m3_vl.processing_minimax_m3_vl.MiniMaxM3VLProcessor
    reference = SimpleNamespace(
        image_processor=SimpleNamespace(merge_size=2),
        **{name: getattr(kind, name) for name in dir(kind) if name.endswith("_TOKEN")},
    )
    grid = np.array([[1, 4, 6]])
    written = kind.replace_image_token(reference, {"image_grid_thw": grid}, 0)
    right = session.tokenizer.encode(f"w3{written}w4", special_tokens=False)
    tower = session.config["vision_config"]
    values = 3 * tower["patch_size"] ** 2 * tower["temporal_patch_size"]
    given = {"pixel_values": np.zeros((24, values), np.float32), "image_grid_thw": grid}
    made = session.request("w3]<]image[>[w4", images=[given], generation_len=1)
    assert list(made.prompt) == right


def test_crops_of_gemma_3_are_refused(tmp_path: Path) -> None:
    session = opened("gemma3", tmp_path)
    given = {"pixel_values": np.zeros((3, 3, 28, 28), np.float32), "num_crops": np.array([2])}
    with pytest.raises(MediaError, match=r"2 crops.*`do_pan_and_scan` to false"):
        session.request("<boi>", images=[given], generation_len=1)


def test_a_marker_that_is_a_token_comes_before_the_text() -> None:
    names: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(name={7: "<image>"}.get), settings=SimpleNamespace()
    )
    media: Any = SimpleNamespace(before_text=" ", spaced="")
    for mark, text in (("", "<image>"), ("<pic>", "<pic>")):
        written = PromptText(names, media, SimpleNamespace(marker=7, mark=mark))  # type: ignore[arg-type]
        assert written.images_first(f"User:\n{text}\nWhat?\n{text}") == f"{text * 2} User:\nWhat?\n"
        message = {"content": [{"type": "text", "text": "A"}, {"type": "image"}]}
        assert written.in_text(message)["content"] == f"A{text}\n"


def test_a_place_that_the_config_lacks_is_named() -> None:
    settings: Any = SimpleNamespace(renamed={}, special={})
    for config in ({}, {"around_token_ids": [1]}, {"around_token_ids": None}):
        names = TokenNames(config, None, settings, "images")
        with pytest.raises(GenerationError, match=r"'around_token_ids' .*id at place 1, by which"):
            names.tokens_of("around_token_ids.1")
    names = TokenNames({"around_token_ids": [1, 2]}, None, settings, "images")
    assert names.tokens_of("around_token_ids.1") == [2]


def test_one_input_without_a_list_is_whole() -> None:
    for one in (io.BytesIO(b"a\nb"), torch.zeros(3, 2, 2), np.zeros((2, 2)), "a.png", b"ab"):
        assert len(listed(one)) == 1
        assert len(listed([one, one])) == 2
    assert listed(None) == []


def test_arrays_of_bfloat16_are_encoded_as_float32() -> None:
    """As processors return them to models in bfloat16: numpy has no such type."""
    inputs: list[Any] = []

    class Noting(Reader):
        kind = "images"

        def _encode(self, digest: bytes, prepared: Any) -> Any:
            inputs.append(prepared["pixel_values"])
            return Encoded(digest=digest, features={}, grid=(1, 1, 1))

    reader = Noting(None, {}, 0)
    pixels = torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3).requires_grad_()
    reader.look({"pixel_values": pixels})
    reader.measure({"pixel_values": pixels})
    reader.look({"pixel_values": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert [one.dtype for one in inputs] == [np.float32] * 2  # the last is in the cache
    assert all(one.tolist() == [[0, 1, 2], [3, 4, 5]] for one in inputs)


def test_an_array_that_a_processor_did_not_return_is_named() -> None:
    class Two(Reader):
        kind = "audio"

        def _encode(self, digest: bytes, prepared: Any) -> Any:
            return prepared["input_features"], prepared["feature_attention_mask"]

    reader, given = Two(None, {}, 0), {"input_features": np.zeros((1, 2, 3), np.float32)}
    for encode in (reader.look, reader.measure):
        with pytest.raises(MediaError, match=r"as \['input_features'\]; expected 'feature_atten"):
            encode(given)
