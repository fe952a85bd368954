# SPDX-License-Identifier: Apache-2.0
"""SigLIP, `transformers.models.siglip`: google/siglip-base-patch16-224 and others: images, and texts of them.

Unusual: no class token and no projection; what a learned query finds among the patches is in the space of texts.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .clip import RECIPE as CLIP

_CONFIGS = {name: dict(CLIP.tiny[0].config[name]) for name in ("text_config", "vision_config")}
_CONFIGS["text_config"]["projection_size"] = _CONFIGS["vision_config"]["hidden_size"]

RECIPE = replace(
    CLIP,
    model_type="siglip",
    architectures=("SiglipModel",),
    special="Two halves into one space: a ViT whose patches a learned query attends to; padding of texts is read.",
    image_processor="SiglipImageProcessor",
    tiny=(Tiny(config=_CONFIGS, image_processor={"size": {"height": 28, "width": 28}}),),
)
