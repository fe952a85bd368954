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


#: Fields of transformers' config of a language model, by name in Molmo's.
_MOLMO_TEXT = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "embedding_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "qkv_bias": "attention_bias",
    "attention_layer_norm": "qk_norm",
    "layer_norm_eps": "rms_norm_eps",
    "norm_after": "norm_after",
    "initializer_range": "initializer_range",
}
#: Sizes that the code of Molmo has, and no config.json: CLIP's vision encoder and the pooling of its patches.
_MOLMO_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "image_size": [336, 336],
    "patch_size": 14,
    "layer_norm_eps": 1e-5,
}
_MOLMO_LAYERS, _MOLMO_NEW_TOKENS = [-2, -9], 128
_MOLMO_TOKENS = {
    "image_start_token_id": "<im_start>",
    "image_end_token_id": "<im_end>",
    "image_patch_id": "<im_patch>",
    "image_col_id": "<im_col>",
}


def molmo(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of Ai2's Molmo of 2024, whose code has the sizes of its vision encoder.

    Args:
        config: Raw config.json; a `vision_config` in it replaces some of those sizes.

    Raises:
        UnsupportedModelError: The language model has experts, clipped projections, or LayerNorm.
    """
    code = str(config.get("auto_map"))
    if ".MolmoConfig" not in code:
        return None
    unusual = {"clip_qkv": (None,), "layer_norm_type": (None, "rms")}
    odd = {name: config[name] for name, usual in unusual.items() if config.get(name) not in usual}
    if odd or "config_molmo.MolmoConfig" not in code:
        raise UnsupportedModelError(
            f"This Molmo is computed by {code} with {odd or 'experts'}, Python code of the checkpoint, which is never "
            "run. Expected the code of Molmo-7B-D, Molmo-7B-O or Molmo-72B, with `clip_qkv` null and `layer_norm_type` "
            "'rms'. Use one of those, or Molmo 2."
        )
    heads, width = config["num_attention_heads"], config["hidden_size"]
    inner = config["intermediate_size"] // 2
    vision = {**_MOLMO_VISION, **config.get("vision_config", {})}
    heads_of_vision = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {
        "text_config": {
            **{_MOLMO_TEXT[name]: value for name, value in config.items() if name in _MOLMO_TEXT},
            "num_key_value_heads": config.get("num_key_value_heads") or heads,
            "head_dim": width // heads,
            "intermediate_size": inner,
            "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
            "additional_vocab_size": _MOLMO_NEW_TOKENS,
            "eos_token_id": TokenId("<|endoftext|>"),
            "tie_word_embeddings": False,
        },
        "vision_config": vision,
        "adapter_config": {
            **{name: vision[name] for name in heads_of_vision},
            "intermediate_size": inner,
            "text_hidden_size": width,
            "vision_feature_layer": _MOLMO_LAYERS,
        },
        **{name: TokenId(token) for name, token in _MOLMO_TOKENS.items()},
        "tie_word_embeddings": False,
        "image_processor": {
            "image_processor_type": "MolmoImageProcessor",
            "size": {"height": vision["image_size"][0], "width": vision["image_size"][1]},
            "patch_size": vision["patch_size"],
        },
    }
