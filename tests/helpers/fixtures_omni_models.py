# SPDX-License-Identifier: Apache-2.0
"""What several tests of omni models and others use."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from qeff_zoo.registry import find_recipe

#: What a published tokenizer calls special tokens, how it writes them, and their ids in the tiny model.
WORDS = {
    "image_token": ("<|IMAGE|>", 200), "video_token": ("<|VIDEO|>", 201), "audio_token": ("<|AUDIO|>", 203),
    "vision_bos_token": ("<|vision_bos|>", 202), "vision_eos_token": ("<|vision_eos|>", 204),
    "audio_bos_token": ("<|audio_bos|>", 205), "audio_eos_token": ("<|audio_eos|>", 206),
}  # fmt: skip


EOS, LENGTH = 7, 6


#: Of pictures alone.
SMALL = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 1024}}


#: What transformers' classes begin with.
CLASSES = {"qwen2_5_omni": "Qwen2_5Omni", "qwen3_omni_moe": "Qwen3OmniMoe"}


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


def saved(
    folder: Path,
    audio: Any,
    fast: Any,
    *,
    config: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] = SMALL,
    videos: Any = None,
    model_type: str = "qwen2_5_omni",
) -> tuple[Any, Any]:
    """Save a tiny model as published: tensors have the names of its models, beside those of models that speak.

    Args:
        folder: Made here.
        heard: Its feature extractor.
        fast: Its tokenizer.
        config: Of it; None for its recipe's.
        sizes: What its processor of pictures is told.
        videos: Its processor of those; transformers' needs torchvision.
        model_type: Of it.

    Returns:
        The model that writes, and the processor.
    """
    name = CLASSES[model_type]
    whole = getattr(transformers, f"{name}Config")(
        **(config or find_recipe(model_type).tiny[0].config)
    )
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ThinkerForConditionalGeneration")
    model = kind._from_config(whole.thinker_config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    weights = folder / "model.safetensors"
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(weights).items()}
    tensors |= {f"{name}.norm.weight": torch.ones(4) for name in ("talker.model", "token2wav")}
    save_file(tensors, weights, {"format": "pt"})
    if model_type == "qwen2_5_omni":
        whole.architectures = ["Qwen2_5OmniModel"]  # as older releases called it
    whole.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    recorded = Qwen2VLImageProcessorPil(**sizes)
    output = json.dumps({**audio.to_dict(), **recorded.to_dict()})  # as published, in one file
    (folder / "preprocessor_config.json").write_text(output)
    fast.save_pretrained(folder)
    with mock.patch.object(transformers.ProcessorMixin, "check_argument_for_proper_class"):
        return model, getattr(transformers, f"{name}Processor")(recorded, videos, audio, fast)
