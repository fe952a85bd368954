# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of several models, in the published form, of which the one that writes is built.

What it answers is compared in `test_any_to_any`, and what it hears alone in `test_windowed_sounds`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from qeff_zoo import tasks
from qeff_zoo.auto.vision import _of_processor
from qeff_zoo.errors import GenerationError
from qeff_zoo.registry import find_recipe

#: What a published tokenizer calls special tokens, how it writes them, and their ids in the tiny model.
WORDS = {
    "image_token": ("<|IMAGE|>", 200), "video_token": ("<|VIDEO|>", 201), "audio_token": ("<|AUDIO|>", 203),
    "vision_bos_token": ("<|vision_bos|>", 202), "vision_eos_token": ("<|vision_eos|>", 204),
    "audio_bos_token": ("<|audio_bos|>", 205), "audio_eos_token": ("<|audio_eos|>", 206),
}  # fmt: skip
EOS = 7


def tokenizer(
    template: str, special: Mapping[str, tuple[str, int]] = WORDS
) -> transformers.PreTrainedTokenizerFast:
    """Make one of words, w0 to w256, but for special tokens by what a processor calls them."""
    words = {f"w{number}": number for number in range(257)}
    for word, number in special.values():
        words[word] = words.pop(f"w{number}")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=f"w{EOS}",
        extra_special_tokens={name: word for name, (word, _) in special.items()},
        chat_template=template,
    )


def saved(folder: Path, heard: Any, fast: Any) -> tuple[Any, Any]:
    """Save a tiny Qwen2.5-Omni as published: tensors have the names of its models, beside those of models that speak.

    Args:
        folder: Made here.
        heard: Its feature extractor.
        fast: Its tokenizer.

    Returns:
        The model that writes, and the processor.
    """
    whole = transformers.Qwen2_5OmniConfig(**find_recipe("qwen2_5_omni").tiny[0].config)
    torch.manual_seed(0)
    kind = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    model = kind._from_config(whole.thinker_config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    weights = folder / "model.safetensors"
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(weights).items()}
    tensors |= {f"{name}.norm.weight": torch.ones(4) for name in ("talker.model", "token2wav")}
    save_file(tensors, weights, {"format": "pt"})
    whole.architectures = ["Qwen2_5OmniModel"]  # as older releases called it
    whole.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    settings = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 1024}}
    seen = Qwen2VLImageProcessorPil(**settings)
    said = json.dumps({**heard.to_dict(), **seen.to_dict()})  # as published, in one file
    (folder / "preprocessor_config.json").write_text(said)
    fast.save_pretrained(folder)
    with mock.patch.object(transformers.ProcessorMixin, "check_argument_for_proper_class"):
        # Its processor of videos, which is none here, needs torchvision.
        return model, transformers.Qwen2_5OmniProcessor(seen, None, heard, fast)


def test_the_model_is_the_one_with_a_language_model_and_a_tower() -> None:
    writes = {"text_config": {}, "audio_config": {}}
    speaks = {"text_config": {}, "code_predictor_config": {}}
    assert tasks.model_config({"talker_config": speaks, "thinker_config": writes}) is writes
    for alone in (writes, speaks, {**writes, "thinker_config": writes}, {"vocab_size": 3}):
        assert tasks.model_config(alone) is alone


@pytest.mark.parametrize("name", ["input_features", "pixel_values_videos"])
def test_sounds_and_videos_beside_pictures_are_refused(name: str) -> None:
    """As transformers' processor prepares those of one prompt, or the sound of a video."""
    given: Any = {"input_ids": [[1, 203, 2]], name: np.zeros((1, 8, 20))}
    session: Any = None
    with pytest.raises(GenerationError, match=f"inputs have {name}; expected text and pictures"):
        next(_of_processor(session, given))
