# SPDX-License-Identifier: Apache-2.0
"""RegNet, `transformers.models.regnet`: facebook/regnet-y-040 and others.

Unusual: grouped convolutions; type y also squeezes and excites channels.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TINY = {"embedding_size": 16, "hidden_sizes": [16, 32, 48], "depths": [2, 2, 2], "groups_width": 8}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 64}, "crop_pct": 0.875}

RECIPE = replace(
    VIT,
    model_type="regnet",
    architectures=("RegNetModel", "RegNetForImageClassification"),
    special="Grouped residual convolutions with batch norms; type y squeezes and excites channels.",
    image_processor="ConvNextImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(name="x", config={**_TINY, "layer_type": "x"}, image_processor=_IMAGE_PROCESSOR),
    ),
)
