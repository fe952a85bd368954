# SPDX-License-Identifier: Apache-2.0
"""DINOv2, `transformers.models.dinov2`: facebook/dinov2-small to giant.

Unusual: layer scale, perhaps a gated MLP, and positions that are interpolated to the size of the image: checkpoints
were trained on 518 pixels, and their processor makes 224.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TINY = {**VIT.tiny[0].config, "mlp_ratio": 2, "image_size": 42, "layerscale_value": 0.7}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 32}, "crop_size": 28}

RECIPE = replace(
    VIT,
    model_type="dinov2",
    architectures=("Dinov2Model", "Dinov2ForImageClassification"),
    special="ViT with layer scale, and positions interpolated to the size of the image.",
    image_processor="BitImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="gated", config={**_TINY, "use_swiglu_ffn": True}, image_processor=_IMAGE_PROCESSOR
        ),
    ),
)
