# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 text models, `transformers.models.gemma4`: 31B, 26B-A4B with experts, E2B and E4B.

Unusual: full layers have heads of their own size and number, whose values may be their keys before RoPE, and turn a
part of each head; scores are not scaled; a learned factor per layer; experts beside the MLP. In E2B and E4B the last
layers look at keys and values of an earlier layer of their kind, and every layer has embeddings of its own.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, experts, rms_norm, window_cache

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
_KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_hidden_layers": 6}
_SHARED = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": False}
_EMBEDDINGS = {"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 257}


def _norms(config: Any) -> int:
    embeddings = config.num_hidden_layers + 1 if config.hidden_size_per_layer_input else 0
    each = 11 if config.enable_moe_block else 7
    return each * config.num_hidden_layers + 1 + embeddings - 2 * config.num_kv_shared_layers


RECIPE = replace(
    GEMMA3_TEXT,
    model_type="gemma4_text",
    architectures=("Gemma4ForCausalLM",),
    special="Full layers with heads of their own and partial RoPE; experts or shared keys and values in some.",
    transforms=(
        rms_norm(_norms),
        experts(lambda config: config.num_hidden_layers if config.enable_moe_block else 0),
        window_cache(lambda config: config.layer_types.count("sliding_attention")),
    ),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | _MOE, name="experts"),
        Tiny(config=_TINY | _KINDS | _SHARED | _EMBEDDINGS, name="shared"),
    ),
)
