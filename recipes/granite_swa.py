# SPDX-License-Identifier: Apache-2.0
"""Granite with windows, `transformers.models.granite_swa`.

Unusual: a learned sink in every head's softmax, sliding and full layers, a RoPE base for every layer, where 0 stands
for no positions at all.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .granite import RECIPE as GRANITE

RECIPE = replace(
    GRANITE,
    model_type="granite_swa",
    architectures=("GraniteSWAForCausalLM",),
    special="Granite's multipliers, attention sinks, sliding and full layers, a RoPE base for each layer.",
    tiny=(
        Tiny(
            config={
                **GRANITE.tiny[0].config,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_window": 7,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "layer_rope_theta": [0.0, 100.0] * 2,
            },
        ),
    ),
)
