# SPDX-License-Identifier: Apache-2.0
"""BEiT, `transformers.models.beit`: microsoft/beit-base-patch16-224, microsoft/beit-base-finetuned-ade-640-640, others.

Unusual: relative positions as biases of the scores, of each layer or shared by all; keys without a bias; layer scale;
the mean of the patches stands for the image. To segment it, states of four layers become maps of four resolutions.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .vit import RECIPE as VIT

_TINY = {
    **VIT.tiny[0].config,
    "layer_scale_init_value": 0.7,
    "out_indices": [1, 2, 3, 4],
    "id2label": PIXEL_LABELS,
}

RECIPE = replace(
    VIT,
    model_type="beit",
    architectures=("BeitModel", "BeitForImageClassification", "BeitForSemanticSegmentation"),
    special="ViT with relative positions as biases of the scores, layer scale, and the mean of the patches.",
    image_processor="BeitImageProcessor",
    tiny=(
        Tiny(
            config={**_TINY, "use_relative_position_bias": True},
            image_processor=VIT.tiny[0].image_processor,
        ),
        Tiny(
            name="shared",
            config={
                **_TINY,
                "use_shared_relative_position_bias": True,
                "use_absolute_position_embeddings": True,
            },
            image_processor=VIT.tiny[0].image_processor,
        ),
    ),
)
