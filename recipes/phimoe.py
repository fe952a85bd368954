# SPDX-License-Identifier: Apache-2.0
"""Phi-3.5-MoE, Phi-mini-MoE and Phi-tiny-MoE, `transformers.models.phimoe`.

Unusual: two experts per token, each with the share of a softmax over scores near the best that is left (SparseMixer);
layer norms; biases in attention and head. Checkpoints with longrope change their frequencies by length.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .mixtral import RECIPE as MIXTRAL

# Its head_dim is always hidden / heads.
_TINY = {key: value for key, value in MIXTRAL.tiny[0].config.items() if key != "head_dim"} | {
    "rms_norm_eps": 1e-2,
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.1,  # the nearness, also in use
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}

RECIPE = replace(
    MIXTRAL,
    model_type="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    special="Two experts by SparseMixer; layer norms; biases in attention and head; optional sliding window.",
    transforms=(experts(lambda config: config.num_hidden_layers),),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | {"sliding_window": None}, name="full")),
)
