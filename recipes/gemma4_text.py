# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 text models of 31B and 26B-A4B, `transformers.models.gemma4`.

Unusual: full layers have heads of their own size and number, whose values are their keys before RoPE, and turn a part
of each head; scores are not scaled; a learned factor per layer; experts beside the MLP. Keys and values of E2B and E4B,
which layers share, have no place in the cache yet.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .gemma3_text import RECIPE as GEMMA3_TEXT

_SLIDING = {"rope_type": "default", "rope_theta": 100.0}
_FULL = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_HEADS = {"global_head_dim": 40, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
_OTHER = {"final_logit_softcapping": 5.0, "rms_norm_eps": 1e-2, "hidden_size_per_layer_input": 0}
_ROPE = {"rope_parameters": {"sliding_attention": _SLIDING, "full_attention": _FULL}}
_UNLIKE = ("query_pre_attn_scalar", "attn_logit_softcapping")
_TINY = {k: v for k, v in GEMMA3_TEXT.tiny[0].config.items() if k not in _UNLIKE}
_TINY |= _HEADS | _OTHER | _ROPE
_MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 48}

RECIPE = replace(
    GEMMA3_TEXT,
    model_type="gemma4_text",
    architectures=("Gemma4ForCausalLM",),
    special="Full layers with heads of their own, keys as values and partial RoPE; optional experts beside the MLP.",
    transforms=(
        rms_norm(
            lambda config: (11 if config.enable_moe_block else 7) * config.num_hidden_layers + 1
        ),
        experts(lambda config: config.num_hidden_layers if config.enable_moe_block else 0),
    ),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | _MOE, name="experts")),
)
