# SPDX-License-Identifier: Apache-2.0
"""SigLIP, `transformers.models.siglip`: google/siglip-base-patch16-224 and others, as embeddings of pictures.

Unusual: no class token and no projection; what a learned query finds among the patches is in the space of texts.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .clip import RECIPE as CLIP

_CONFIGS = {name: CLIP.tiny[0].config[name] for name in ("text_config", "vision_config")}

RECIPE = replace(
    CLIP,
    model_type="siglip",
    architectures=("SiglipModel",),
    special="The image half: a ViT whose patches a learned query attends to, in the space of texts.",
    image_processor="SiglipImageProcessor",
    tiny=(Tiny(config=_CONFIGS, image_processor={"size": {"height": 28, "width": 28}}),),
)
