# SPDX-License-Identifier: Apache-2.0
"""ViT-MSN, `transformers.models.vit_msn`: facebook/vit-msn-small and others.

Unusual: ViT without a pooler.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="vit_msn",
    architectures=("ViTMSNForImageClassification",),
    task="image-classification",
    special="ViT without a pooler; the class token is classified.",
    tiny=(Tiny(config=VIT.tiny[0].config, image_processor=VIT.tiny[0].image_processor),),
)
