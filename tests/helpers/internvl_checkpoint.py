# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in the form of OpenGVLab/InternVL3-1B, with random weights."""

import json
from pathlib import Path
from typing import Any

import runnable_package
import torch
from safetensors.torch import save_file
from transformers import InternVLConfig, InternVLForConditionalGeneration

from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT
from qeff_zoo.registry import find_recipe

#: Names in OpenGVLab's checkpoints, by transformers' names.
_NAMES = {
    "model.vision_tower.embeddings.cls_token": "vision_model.embeddings.class_embedding",
    "position_embeddings": "position_embedding",
    "patch_embeddings.projection": "patch_embedding",
    "model.vision_tower.encoder.layer.": "vision_model.encoder.layers.",
    "model.vision_tower.": "vision_model.",
    "lambda_": "ls",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "model.multi_modal_projector.layer_norm": "mlp1.0",
    "model.multi_modal_projector.linear_1": "mlp1.1",
    "model.multi_modal_projector.linear_2": "mlp1.3",
    "model.language_model.": "language_model.model.",
    "lm_head": "language_model.lm_head",
}


def write(folder: Path, side: int = 28, patch: int = 7, **more: Any) -> Any:
    """Write a checkpoint; return transformers' model with the same weights.

    Args:
        folder: Made here.
        side: Side of a tile in pixels, of which each side has four patches.
        patch: Side of a patch.
        more: Changes of the language model's config.
    """
    tiny = find_recipe("internvl").tiny[0].config
    text = {**tiny["text_config"], "vocab_size": 270, "tie_word_embeddings": False, **more}
    vision = {**tiny["vision_config"], "attention_bias": True, "use_qk_norm": True}
    vision |= {"image_size": [side] * 2, "patch_size": [patch] * 2}
    vision |= {"norm_type": "rms_norm", "model_type": "internvl_vision"}
    both = {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    config = InternVLConfig(**both, image_token_id=259, image_seq_length=4)
    torch.manual_seed(0)
    model = InternVLForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    ).eval()
    weights = {}
    for name, value in model.state_dict().items():
        value.add_(0.1 * torch.randn_like(value))
        for reference, own in _NAMES.items():
            name = name.replace(reference, own)
        weights[name] = value.clone()
    for name in [name for name in weights if "attention.q_proj" in name]:
        parts = [weights.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        weights[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    named = {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"}
    vision = {named.get(name, name): value for name, value in vision.items()}
    vision |= {"image_size": side, "patch_size": patch, "model_type": "intern_vit_6b"}
    content = {
        "architectures": ["InternVLChatModel"],
        "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
        "model_type": "internvl_chat",
        "llm_config": {**text, "architectures": ["Qwen2ForCausalLM"]},
        "vision_config": vision,
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": side,
        "max_dynamic_patch": 4,
        "min_dynamic_patch": 1,
        "ps_version": "v2",
        "select_layer": -1,
    }
    (folder / "config.json").write_text(json.dumps(content))
    extractor = {"feature_extractor_type": "CLIPFeatureExtractor", "size": side, "crop_size": side}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    tokenizer = runnable_package._tokenizer(IMAGE_TEXT_TO_TEXT, types=False)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<img>", "</img>", "<IMG_CONTEXT>", "<|im_end|>"]}
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    return model
