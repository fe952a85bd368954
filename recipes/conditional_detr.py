# SPDX-License-Identifier: Apache-2.0
"""Conditional DETR, `transformers.models.conditional_detr`: microsoft/conditional-detr-resnet-50 and others.

Unusual: queries have reference points, whose sines are scaled by the decoder's states and joined to queries and keys;
boxes are offsets from those points. Scores are sigmoids.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .detr import RECIPE as DETR

RECIPE = replace(
    DETR,
    model_type="conditional_detr",
    architectures=("ConditionalDetrForObjectDetection",),
    special="DETR whose queries have reference points, from which boxes are offsets.",
    image_processor="ConditionalDetrImageProcessor",
    tiny=(Tiny(config=DETR.tiny[0].config, image_processor=DETR.tiny[0].image_processor),),
)
