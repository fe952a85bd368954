# SPDX-License-Identifier: Apache-2.0
"""Kimi Linear 48B-A3B, `transformers.models.kimi_linear`: Kimi delta attention and unrotated latent attention."""

from typing import Any

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, experts, layers_of, recurrence, rms_norm

_LINEAR, _FULL = "linear_attention", "full_attention"


def _norms(config: Any) -> int:
    compressed = hasattr(type(config), "q_lora_rank")  # Ling's queries are not
    latents = 2 if compressed and config.q_lora_rank is not None else 1
    return int(2 * config.num_hidden_layers + 1 + latents * config.layer_types.count(_FULL))


RECIPE = Recipe(
    model_type="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    task="text-generation",
    special="A delta rule with a vector of decays per head; latent attention without positions; many experts.",
    transforms=(rms_norm(_norms), experts(), recurrence(layers_of(_LINEAR))),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96}
            | {"num_hidden_layers": 5, "layer_types": [_LINEAR, _FULL, _LINEAR, _LINEAR, _FULL]}
            | {"mlp_layer_types": ["dense", "sparse", "dense", "dense", "sparse"]}
            # Its own number of key heads is not used: latents have one.
            | {"num_attention_heads": 4, "num_key_value_heads": 3, "kv_lora_rank": 32}
            | {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
            | {"linear_head_dim": 20, "linear_num_heads": 3, "linear_conv_kernel_dim": 3}
            | {"num_local_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
            | {"moe_intermediate_size": 48, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-2}
            | {"max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0}
        ),
    ),
)
