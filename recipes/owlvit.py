# SPDX-License-Identifier: Apache-2.0
"""OWL-ViT, `transformers.models.owlvit`: google/owlvit-base-patch32, owlvit-base-patch16 and owlvit-large-patch14.

Unusual: CLIP whose patches each have an embedding, to compare with texts, and a box around their place.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .clip import RECIPE as CLIP

_CLIP = CLIP.tiny[0].config
_TINY = {
    "text_config": {**_CLIP["text_config"], "num_hidden_layers": 4},
    "vision_config": {**_CLIP["vision_config"], "num_hidden_layers": 4},
    "projection_dim": 32,
    "initializer_factor": 0.15,
}

RECIPE = replace(
    CLIP,
    model_type="owlvit",
    architectures=("OwlViTForObjectDetection",),
    task="zero-shot-object-detection",
    special="CLIP whose patches have an embedding and a box each.",
    image_processor="OwlViTImageProcessor",
    tiny=(Tiny(config=_TINY, image_processor={"size": {"height": 28, "width": 28}}),),
)
