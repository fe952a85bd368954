# SPDX-License-Identifier: Apache-2.0
"""Phi-3.5-MoE, Phi-mini-MoE and Phi-tiny-MoE, `transformers.models.phimoe`.

Unusual: two experts per token, each weighted by a softmax over the scores near the best that is left (SparseMixer);
layer norms; biases in attention and head; longrope with scales of its own.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, experts

from .mixtral import RECIPE as MIXTRAL

# Its head_dim is always hidden / heads.
_TINY = {key: value for key, value in MIXTRAL.tiny[0].config.items() if key != "head_dim"} | {
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.1,  # the nearness, also in use
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "original_max_position_embeddings": 8,  # shorter than the prompt
        "short_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
        "long_factor": [2.0] * 8,
        "short_mscale": 1.2,
        "long_mscale": 1.7,
    },
}

RECIPE = replace(
    MIXTRAL,
    model_type="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM", "PhimoeForSequenceClassification"),
    special="Two experts by SparseMixer; layer norms; biases in attention and head; window; longrope by context.",
    transforms=(
        experts(),
        Transform(name="phimoe_rope", count=lambda _: 1),
    ),
    tiny=(Tiny(config=_TINY),),
)
