# SPDX-License-Identifier: Apache-2.0
"""BEiT, `transformers.models.beit`: microsoft/beit-base-patch16-224 and others.

Unusual: relative positions as biases of the scores, of each layer or shared by all; keys without a bias; layer scale;
the mean of the patches stands for the image.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TINY = {**VIT.tiny[0].config, "layer_scale_init_value": 0.7}

RECIPE = replace(
    VIT,
    model_type="beit",
    architectures=("BeitModel", "BeitForImageClassification"),
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
