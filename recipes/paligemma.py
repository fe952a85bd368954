# SPDX-License-Identifier: Apache-2.0
"""PaliGemma 1 and 2, `transformers.models.paligemma`: SigLIP, and Gemma 1 or 2 whose prompts see themselves whole."""

from dataclasses import replace

from qeff_zoo.multimodal.families.paligemma import PaliGemma
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP_VISION
from .gemma import RECIPE as GEMMA
from .gemma2 import RECIPE as GEMMA2
from .llava import RECIPE as LLAVA

_IMAGE_FIELDS = {"vision_config": SIGLIP_VISION, "projection_dim": 64, "image_token_index": 200}
_GEMMA = {**GEMMA.tiny[0].config, "model_type": "gemma"}
_GEMMA2 = {**GEMMA2.tiny[0].config, "model_type": "gemma2"}

RECIPE = replace(
    LLAVA,
    model_type="paligemma",
    architectures=("PaliGemmaForConditionalGeneration",),
    special="Bidirectional attention within the prompt, which is one prefill call.",
    images=PaliGemma(),
    tiny=(
        Tiny(config={**_IMAGE_FIELDS, "text_config": _GEMMA}),
        Tiny(config={**_IMAGE_FIELDS, "text_config": _GEMMA2}, name="gemma2"),
    ),
)
