# SPDX-License-Identifier: Apache-2.0
"""DINOv2 with registers, `transformers.models.dinov2_with_registers`: facebook/dinov2-with-registers-small to giant.

Unusual: learned states behind the class token, which stand for no patch.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .dinov2 import RECIPE as DINOV2

RECIPE = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    architectures=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
    special="DINOv2 with learned register states that stand for no patch.",
    tiny=(
        Tiny(
            config={**DINOV2.tiny[0].config, "num_register_tokens": 3},
            image_processor={
                "image_processor_type": "BitImageProcessor",
                **DINOV2.tiny[0].image_processor,
            },
        ),
    ),
)
