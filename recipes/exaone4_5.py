# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4.5, `transformers.models.exaone4_5`: Qwen2.5-VL's tower with grouped queries, and EXAONE 4."""

from dataclasses import replace

from qeff_zoo.recipe import Images, Tiny

from .exaone4 import RECIPE as EXAONE4
from .qwen2_5_vl import RECIPE as QWEN2_5_VL
from .qwen2_5_vl import TOKENS, VISION

RECIPE = replace(
    QWEN2_5_VL,
    model_type="exaone4_5",
    architectures=("Exaone4_5_ForConditionalGeneration",),
    special="Qwen2.5-VL's tower with grouped queries, whose rows EXAONE 4 reads at plain positions.",
    images=Images(patches=True),
    transforms=(),
    tiny=(
        Tiny(
            config={
                **TOKENS,
                "text_config": {**EXAONE4.tiny[0].config, "model_type": "exaone4"},
                "vision_config": {
                    **VISION,
                    "depth": 3,
                    "window_size": 16,
                    "fullatt_block_indexes": [1],
                    "out_hidden_size": 64,
                    "intermediate_size": 48,
                    "num_key_value_heads": 1,
                },
            }
        ),
    ),
)
