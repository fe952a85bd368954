# SPDX-License-Identifier: Apache-2.0
"""InternVL 2.5, 3 and 3.5 in OpenGVLab's own form, `qeff_zoo.export.architectures.internvl_chat`.

Their config.json has other names than transformers'; their image processor is in their code, and the ids of two tokens
are in the tokenizer's files.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import TokenId

from .internvl import RECIPE as INTERNVL

#: Fields of transformers' vision config, by name in a checkpoint's.
_VISION = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}
_NORMALIZED = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}


def _alias(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    text, vision = config.get("llm_config"), config.get("vision_config")
    known = isinstance(text, Mapping) and isinstance(vision, Mapping)
    if not known or config.get("model_type") != "internvl_chat":
        return None
    renamed = {_VISION.get(name, name): value for name, value in vision.items()}
    side = config.get("force_image_size") or vision.get("image_size", 448)
    ratio = config.get("downsample_ratio", 0.5)
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
            **_NORMALIZED,
        },
    }


RECIPE = replace(
    INTERNVL,
    model_type="internvl_chat",
    architectures=("InternVLChatModel",),
    special="Plain InternVL under other names.",
    alias=_alias,
    images=Images(marker="<image>", before=("<img>",), after=("</img>",)),
)
