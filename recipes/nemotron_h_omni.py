# SPDX-License-Identifier: Apache-2.0
"""Nemotron 3 Nano Omni, `transformers.models.nemotron_h_omni`: RADIO over images of any size, and Nemotron-H.

Programs read images alone. Older names in a config.json (`llm_config`): save it by transformers first.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.multimodal.families.radio import Radio
from qeff_zoo.recipe import Tiny

from .nemotron_h import RECIPE as NEMOTRON_H

_RADIO = {
    "model_type": "radio",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "mlp_ratio": 2.0,
    "patch_size": 4,
    "max_img_size": 20,
    "num_cls_tokens": 2,
    "num_registers": 3,
    "video_temporal_patch_size": 2,
    "initializer_range": 0.2,
}

_CONFIG: dict[str, Any] = {
    "text_config": {**NEMOTRON_H.tiny[0].config, "model_type": "nemotron_h"},
    "vision_config": _RADIO,
    "vision_hidden_size": 48,
    "projector_hidden_size": 80,
    "image_token_id": 200,
}
_MTP = {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["full_attention", "moe"]}

RECIPE = replace(
    NEMOTRON_H,
    model_type="nemotron_h_omni",
    architectures=("NemotronH_Omni_Reasoning_V3",),
    special="Patches of images of any size, behind learned tokens; positions are cut out of a square.",
    task="image-text-to-text",
    images=Radio(),
    image_processor="NemotronH_Omni_Reasoning_V3ImageProcessor",
    tiny=(
        Tiny(config=_CONFIG),
        Tiny(name="normed", config={**_CONFIG, "text_config": _CONFIG["text_config"] | _MTP}),
    ),
)
