# SPDX-License-Identifier: Apache-2.0
"""dots3.note, text alone, `transformers.models.dots3_note`.

Unusual: DeepSeek V3.2's attention in a few layers, between layers of latent attention with a window, which have
sizes of their own; latents are scaled after their norm, the rotated key has one too, and heads are gated.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm, window_cache

from .deepseek_v32 import RECIPE as DEEPSEEK_V32

_LAYER_TYPES = {"layer_types": ["indexed_attention", "sliding_attention"] * 2, "sliding_window": 7}
_MLP_TYPES = {
    "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2,
    "shared_experts_intermediate_size": 40,
}
_SIZES = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 20, "kv_lora_rank": 28}
_HEADS = {"head_dim": 20, "qk_rope_head_dim": 4, "qk_nope_head_dim": 16, "v_head_dim": 20}
_PER_LAYER = {
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "per_layer_config": {1: _SIZES | _HEADS, 3: _SIZES | _HEADS},
}
_ROPE_BASES = {"indexed_attention": 1000.0, "sliding_attention": 100.0}
_ROPE = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in _ROPE_BASES.items()}
_TINY = {
    **DEEPSEEK_V32.tiny[0].config,
    **_LAYER_TYPES,
    **_MLP_TYPES,
    **_PER_LAYER,
    "rope_parameters": _ROPE,
}

RECIPE = replace(
    DEEPSEEK_V32,
    model_type="dots3_note_text",
    architectures=("Dots3NoteForCausalLM",),
    special="Latent attention (MLA) with a window in most layers, to selected keys in others; gated heads; experts.",
    transforms=(
        rms_norm(lambda config: 5 * config.num_hidden_layers + 1),
        experts(lambda config: config.mlp_layer_types.count("sparse")),
        *DEEPSEEK_V32.transforms[2:],
        window_cache(lambda config: config.layer_types.count("sliding_attention")),
    ),
    tiny=(Tiny(config=_TINY),),
)
