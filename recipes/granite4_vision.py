# SPDX-License-Identifier: Apache-2.0
"""Granite 4 Vision, `transformers.models.granite4_vision`: LLaVA-NeXT's tiles, windows summed up by queries."""

from dataclasses import replace

from qeff_zoo.multimodal.families.granite4_vision import Granite4Vision
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IMAGE_GRIDS, SIGLIP_VISION
from .granite import RECIPE as GRANITE
from .llava import RECIPE as LLAVA
from .llava_next import RECIPE as LLAVA_NEXT

RECIPE = replace(
    LLAVA,
    model_type="granite4_vision",
    architectures=("Granite4VisionForConditionalGeneration",),
    special="Features of several vision layers are added before several text layers, in no token's place.",
    transforms=GRANITE.transforms,
    images=Granite4Vision(),
    tiny=(
        Tiny(
            config={
                "text_config": {**GRANITE.tiny[0].config, "num_hidden_layers": 6},
                "vision_config": {**SIGLIP_VISION, "num_hidden_layers": 4},
                "qformer_config": {"num_hidden_layers": 2, "intermediate_size": 96},
                "image_token_index": 200,
                "image_grid_pinpoints": IMAGE_GRIDS,
                "vision_feature_select_strategy": "full",
                "downsample_rate": "1/2",
                "deepstack_layer_map": [[-3, 1], [-1, 0]],
                "spatial_target_layers": [2, 3, 4, 5],
            },
            image_processor=LLAVA_NEXT.tiny[0].image_processor,
        ),
    ),
)
