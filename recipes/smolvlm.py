# SPDX-License-Identifier: Apache-2.0
"""SmolVLM, `transformers.models.smolvlm`: Idefics 3, small; frames of a video are images, behind their times."""

from dataclasses import replace

from qeff_zoo.multimodal.families.smolvlm import SmolVlm
from qeff_zoo.recipe import Tiny

from .idefics3 import RECIPE as IDEFICS3

RECIPE = replace(
    IDEFICS3,
    model_type="smolvlm",
    architectures=("SmolVLMForConditionalGeneration",),
    special="Idefics 3, small; frames of a video are images.",
    images=SmolVlm(),
    tiny=(
        Tiny(
            config=IDEFICS3.tiny[0].config,
            image_processor={
                "image_processor_type": "SmolVLMImageProcessor",
                "size": {"longest_edge": 56},
                "max_image_size": {"longest_edge": 28},
            },
        ),
    ),
)
