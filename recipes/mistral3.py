# SPDX-License-Identifier: Apache-2.0
"""Mistral Small 3.1 and its relatives, `transformers.models.mistral3`: Pixtral's images of any size."""

from dataclasses import replace

from qeff_zoo.multimodal.families.pixtral import Pixtral
from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXTRAL_VISION
from .llava import RECIPE as LLAVA
from .mistral import RECIPE as MISTRAL

RECIPE = replace(
    LLAVA,
    model_type="mistral3",
    architectures=("Mistral3ForConditionalGeneration",),
    special="Images of any size, each line of which ends with a token; four rows become one.",
    images=Pixtral(),
    vision_encoders={},
    tiny=(
        Tiny(
            config={
                "text_config": {**MISTRAL.tiny[0].config, "model_type": "mistral"},
                "vision_config": PIXTRAL_VISION,
                "image_token_index": 200,
                "spatial_merge_size": 2,
            },
            image_processor={
                "image_processor_type": "PixtralImageProcessor",
                "size": {"longest_edge": 56},
                "patch_size": {"height": 14, "width": 14},
            },
        ),
    ),
)
