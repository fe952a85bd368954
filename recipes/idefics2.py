# SPDX-License-Identifier: Apache-2.0
"""Idefics 2, `transformers.models.idefics2`: images of any size, and parts of them, each summed up by queries."""

from dataclasses import replace

from qeff_zoo.multimodal.families.idefics2 import Idefics2
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .llava import RECIPE as LLAVA
from .mistral import RECIPE as MISTRAL

_RESAMPLER = {"resampler_n_latents": 6, "resampler_depth": 2, "resampler_n_heads": 4}
_HEADS = {"resampler_head_dim": 16, "num_key_value_heads": 2, "hidden_size": 64}

RECIPE = replace(
    LLAVA,
    model_type="idefics2",
    architectures=("Idefics2ForConditionalGeneration",),
    special="Images of any size, or a whole and its parts, each of which learned queries sum up.",
    images=Idefics2(),
    tiny=(
        Tiny(
            config={
                "text_config": {**MISTRAL.tiny[0].config, "model_type": "mistral"},
                "vision_config": IDEFICS3_VISION,
                "perceiver_config": {**_RESAMPLER, **_HEADS},
                "image_token_id": 200,
            }
        ),
    ),
)
