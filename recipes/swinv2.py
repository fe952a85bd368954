# SPDX-License-Identifier: Apache-2.0
"""Swin v2, `transformers.models.swinv2`: microsoft/swinv2-tiny-patch4-window8-256 and others.

Unusual: scores are cosines with a learned scale, position biases come of a small network, and norms follow each block.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .swin import RECIPE as SWIN

RECIPE = replace(
    SWIN,
    model_type="swinv2",
    architectures=("Swinv2Model", "Swinv2ForImageClassification", "Swinv2ForMaskedImageModeling"),
    special="Swin with cosine scores, biases by a network of relative positions, and norms after each block.",
    image_processor="ViTImageProcessor",
    tiny=(Tiny(config={**SWIN.tiny[0].config}, image_processor=SWIN.tiny[0].image_processor),),
)
