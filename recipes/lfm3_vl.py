# SPDX-License-Identifier: Apache-2.0
"""LFM3-VL, `transformers.models.lfm3_vl`: a vision encoder of gated convolutions and attention, and LFM3."""

from dataclasses import replace

from qeff_zoo.multimodal.families.lfm3 import Lfm3Vl
from qeff_zoo.recipe import Tiny

from .lfm3 import RECIPE as LFM3
from .qwen3_vl import STAMP

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "patch_size": 4,
    "layer_types": ["conv", "full_attention"] * 2,
    "initializer_range": 0.2,
}
_TOKENS = {
    "image_token_id": 200,
    "video_token_id": 201,
    "vision_start_token_id": 202,
    "vision_end_token_id": 203,
}

RECIPE = replace(
    LFM3,
    model_type="lfm3_vl",
    architectures=("Lfm3VlForConditionalGeneration",),
    special="Convolutions over rows and columns of patches lie between the layers of attention.",
    task="image-text-to-text",
    images=Lfm3Vl(video="video_token_id", video_processor="Qwen3VLVideoProcessor", stamp=STAMP),
    tiny=(
        Tiny(
            config={
                "text_config": {**LFM3.tiny[0].config, "model_type": "lfm3"},
                "vision_config": _VISION,
                "projector_hidden_size": 80,
                **_TOKENS,
            }
        ),
    ),
)
