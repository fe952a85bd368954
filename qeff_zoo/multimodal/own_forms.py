# SPDX-License-Identifier: Apache-2.0
"""Configurations in the form of their authors' code: fields of config.json in, those of transformers' class out.

Each function is the `alias` of a recipe. It returns None for a configuration that is not in its form.
"""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.recipe import TokenId

#: Fields of transformers' vision config, by name in InternVL's.
_INTERNVIT = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}


def internvl_chat(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of OpenGVLab's InternVL, whose code computes tiles as GOT-OCR2's processor does.

    Args:
        config: Raw config.json.

    Raises:
        UnsupportedModelError: The language model is code of the checkpoint.
    """
    text, vision = config.get("llm_config"), config.get("vision_config")
    if not isinstance(text, Mapping) or not isinstance(vision, Mapping):
        return None
    if ".InternVLChatConfig" not in str(config.get("auto_map")):
        return None
    if text.get("auto_map"):
        raise UnsupportedModelError(
            f"The language model of this InternVL is {text.get('model_type')!r}, Python code of the checkpoint "
            "(`auto_map` in llm_config), which is never run. Expected one that transformers implements, such as "
            "'qwen2'. Use OpenGVLab's checkpoint for transformers, whose name ends with -hf."
        )
    side = config.get("force_image_size") or vision.get("image_size", 448)
    ratio = config.get("downsample_ratio", 0.5)
    renamed = {_INTERNVIT.get(name, name): value for name, value in vision.items()}
    return {
        "text_config": {**text, "eos_token_id": TokenId("<|im_end|>")},
        "vision_config": {**renamed, "image_size": side, "model_type": "internvl_vision"},
        "image_token_id": TokenId("<IMG_CONTEXT>"),
        "image_seq_length": int((side // vision.get("patch_size", 14) * ratio) ** 2),
        "vision_feature_layer": config.get("select_layer", -1),
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
        "image_processor": {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": side, "width": side},
            "crop_to_patches": bool(config.get("dynamic_image_size", True)),
            "min_patches": config.get("min_dynamic_patch", 1),
            "max_patches": config.get("max_dynamic_patch", 12),
            **_IMAGENET,
        },
    }
