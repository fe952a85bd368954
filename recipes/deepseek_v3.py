# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V3 and R1, Kimi K2, Moonlight, `transformers.models.deepseek_v3`.

Unusual: latent attention, whose cache holds latents; dense layers first; experts are chosen within the best groups by
sigmoid scores plus a stored bias, weighted by the scores without it, beside a shared expert.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

# Latent attention has no use for num_key_value_heads, as long as 4 // 3 is 1.
_RANKS = {"q_lora_rank": 24, "kv_lora_rank": 32, "num_key_value_heads": 3, "rms_norm_eps": 1e-2}
_HEADS = {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
_YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3}
_ROPE_BASE = {"rope_theta": 1000.0, "original_max_position_embeddings": 32}
_MOE = {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
_SIZES = {"moe_intermediate_size": 48, "first_k_dense_replace": 2, "routed_scaling_factor": 1.7}
_ROPE = {"rope_parameters": _YARN | _ROPE_BASE}
_TINY = {**LLAMA.tiny[0].config, **_RANKS, **_HEADS, **_ROPE, **_MOE, **_SIZES}

RECIPE = replace(
    LLAMA,
    model_type="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM", "DeepseekV3ForSequenceClassification"),
    special="Latent attention (MLA), whose cache holds latents; dense layers, then experts with biased scores.",
    transforms=(
        rms_norm(lambda c: (3 + (c.q_lora_rank is not None)) * c.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"q_lora_rank": None, "rope_interleave": False}, name="plain_query"),
    ),
)
