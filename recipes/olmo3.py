# SPDX-License-Identifier: Apache-2.0
"""OLMo 3 7B and 32B, `transformers.models.olmo3`.

Unusual: OLMo 2 with three sliding layers to a full one; only the full layers scale RoPE (yarn).
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .olmo2 import RECIPE as OLMO2

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

RECIPE = replace(
    OLMO2,
    model_type="olmo3",
    architectures=("Olmo3ForCausalLM", "Olmo3ForSequenceClassification"),
    special="OLMo 2 with sliding and full layers, each with its own RoPE parameters.",
    tiny=(
        Tiny(
            config={
                **OLMO2.tiny[0].config,
                "sliding_window": 7,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                    "full_attention": {**_YARN, "rope_theta": 1000.0},
                },
            }
        ),
    ),
)
