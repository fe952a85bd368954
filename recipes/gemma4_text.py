# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 text models, `transformers.models.gemma4`: 31B, 26B-A4B with experts, E2B and E4B.

Unusual: full layers have heads of their own, whose values may be keys before RoPE; E2B and E4B share keys and values.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .gemma3_text import RECIPE as GEMMA3_TEXT

_FULL = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_HEADS = {"global_head_dim": 40, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
_OTHER_FIELDS = {
    "final_logit_softcapping": 5.0,
    "rms_norm_eps": 1e-2,
    "hidden_size_per_layer_input": 0,
}
_ROPE = {**GEMMA3_TEXT.tiny[0].config["rope_parameters"], "full_attention": _FULL}
_TINY = {**GEMMA3_TEXT.tiny[0].config, **_HEADS, **_OTHER_FIELDS, "rope_parameters": _ROPE}
_MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 48}
_SHARED_CACHE = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": False}
_SHARED_CACHE |= {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 257}
_SIX_LAYERS = {"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3}
_TINY_CONFIGS = {
    "base": _TINY,
    "experts": _TINY | _MOE,
    "shared": {**_TINY, **_SHARED_CACHE, **_SIX_LAYERS},
}
_EXPERTS = experts(lambda config: config.num_hidden_layers if config.enable_moe_block else 0)
_NORMS = rms_norm(
    lambda c: (
        (7 + 4 * c.enable_moe_block + bool(c.hidden_size_per_layer_input)) * c.num_hidden_layers
        - 2 * c.num_kv_shared_layers
        + bool(c.hidden_size_per_layer_input)
        + 1
    )
)

RECIPE = replace(
    GEMMA3_TEXT,
    model_type="gemma4_text",
    architectures=("Gemma4ForCausalLM",),
    special="Full layers with heads of their own and partial RoPE; some models have experts or shared keys and values.",
    transforms=(_NORMS, _EXPERTS, *GEMMA3_TEXT.transforms[1:]),
    tiny=tuple(Tiny(config=config, name=name) for name, config in _TINY_CONFIGS.items()),
)
