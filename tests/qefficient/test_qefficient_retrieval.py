# SPDX-License-Identifier: Apache-2.0
"""QEfficient's helpers for Qwen3-VL-Embedding, Qwen3-VL-Reranker and InternVL, beside their published descriptions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import PreTrainedConfig

from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.generation import retrieval
from qeff_zoo.qefficient.generation.internvl import InternProcessor

PHOTO = Image.fromarray(np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3))


class Processor:
    """A processor that returns its arguments, and one token for each character."""

    def __init__(self) -> None:
        self.tokenizer = SimpleNamespace(all_special_ids=[1, 2], get_vocab=lambda: {"yes": 7})

    @staticmethod
    def apply_chat_template(chats: list[Any], **_: Any) -> list[str]:
        return ["".join(part.get("text", "") for one in chats[0] for part in one["content"])]

    def __call__(self, text: list[str], **given: Any) -> dict[str, Any]:
        self.given = given
        ids = torch.tensor([[1, *range(10, 10 + len(text[0])), 2, 3, 4, 5, 6, 7]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_prompts_are_those_of_the_published_models() -> None:
    system, user = retrieval.format_model_input(text="a dog", image=PHOTO, instruction=" Find it ")
    assert system == {"role": "system", "content": [{"type": "text", "text": "Find it."}]}
    assert [part["type"] for part in user["content"]] == ["image", "text"]
    empty = retrieval.format_model_input()
    assert empty[0]["content"][0]["text"] == "Represent the user's input."
    assert empty[1]["content"] == [{"type": "text", "text": "NULL"}]
    chat = retrieval.format_mm_instruction("Find.", {"text": "q"}, {"image": PHOTO}, max_pixels=9)
    texts = [part.get("text") for part in chat[1]["content"]]
    assert texts == ["<Instruct>: Find.", "<Query>:", "q", "\n<Document>:", None]
    with pytest.raises(GenerationError, match=r"has a video, 'a\.mp4'; expected a text"):
        retrieval.format_model_input(video="a.mp4")


def test_images_and_limits_reach_the_processor() -> None:
    processor = Processor()
    chat = retrieval.format_model_input(image=PHOTO)
    retrieval.tokenize_conversation(processor, chat)
    (image,) = processor.given["images"]
    assert image.size == PHOTO.size
    limits = {"min_pixels": 4096, "max_pixels": 1_843_200}
    assert processor.given["images_kwargs"] == limits


def test_pairs_are_cut_but_for_special_tokens_and_the_end() -> None:
    processor = Processor()
    chat = [{"role": "user", "content": [{"type": "text", "text": "abcdef"}]}]
    found = retrieval.tokenize_pair(processor, chat, max_length=4)
    assert found["input_ids"].tolist() == [[1, 10, 11, 2, 3, 4, 5, 6, 7]]
    assert found["attention_mask"].shape == (1, 9)
    assert retrieval.truncate_tokens_optimized([1, 8, 9, 2], 9, [1, 2]) == [1, 8, 9, 2]


def test_scores_are_probabilities_of_yes_against_no() -> None:
    logits = np.array([[[9.0, 9.0], [2.0, 1.0]], [[0.0, 0.0], [3.0, 3.0]]], np.float32)
    expected = torch.softmax(torch.from_numpy(logits[:, -1]), -1)[:, 0]
    torch.testing.assert_close(retrieval.score_from_logits(logits, 0, 1), expected)
    with pytest.raises(GenerationError, match="no token 'no'; expected both answers"):
        retrieval.get_yes_no_token_ids(Processor().tokenizer)


def test_a_configuration_keeps_layers_that_it_has() -> None:
    vision = PreTrainedConfig(depth=4, deepstack_visual_indexes=[0, 1, 2])
    config = SimpleNamespace(
        text_config=PreTrainedConfig(num_hidden_layers=3), vision_config=vision
    )
    retrieval.configure_embedding_model_config(config, 36, 2, None)
    assert config.text_config.num_hidden_layers == 3
    assert (vision.depth, vision.deepstack_visual_indexes) == (2, [0, 1])


def test_internvl_has_the_tiles_of_transformers_processor() -> None:
    config = SimpleNamespace(
        force_image_size=None,
        downsample_ratio=0.5,
        vision_config=SimpleNamespace(image_size=28, patch_size=7),
    )
    tokenizer = SimpleNamespace(
        apply_chat_template=lambda chat, **_: "".join(
            f"[{one['role']}]{one['content']}" for one in chat
        )
    )
    processor = InternProcessor(SimpleNamespace(config=config), tokenizer)
    photo = PHOTO.resize((60, 30))  # two tiles side by side, and the whole
    tiles = processor.load_image(photo, input_size=28, max_num=4)
    grid = np.asarray(photo.resize((56, 28), Image.Resampling.BICUBIC))
    whole = np.asarray(photo.resize((28, 28), Image.Resampling.BICUBIC))
    right = np.stack([grid[:, :28], grid[:, 28:], whole]) / 255
    right = (right - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    np.testing.assert_allclose(tiles.numpy(), right.transpose(0, 3, 1, 2), atol=0.02)
    roles, context = ("<u>", "<a>"), "<IMG_CONTEXT>" * 4
    before = [["<u>", "hi"], ["<a>", "hello"]]
    found = processor(tiles, ["What?", "<image> and?"], before, roles, num_patches_list=[2, 1])
    turns = "[user]hi[assistant]hello[user]"
    assert found == [
        f"{turns}<img>{context * 2}</img>\nWhat?",
        f"{turns}<img>{context}</img> and?",
    ]
