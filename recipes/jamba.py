# SPDX-License-Identifier: Apache-2.0
"""Jamba and Jamba Reasoning, `transformers.models.jamba`: Mamba layers, a few attention layers without positions."""

from typing import Any

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, experts, recurrence, rms_norm


def _mamba(config: Any) -> int:
    return int(config.layers_block_type.count("mamba"))


def _sparse(config: Any) -> int:
    return sum(number > 1 for number in config.layers_num_experts)


RECIPE = Recipe(
    model_type="jamba",
    architectures=("JambaForCausalLM",),
    task="text-generation",
    special="Mamba layers that normalize their step, key and query; attention without positions; some experts.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1 + 3 * _mamba(config)),
        experts(_sparse),
        recurrence(_mamba),
    ),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={"vocab_size": 257, "hidden_size": 64, "intermediate_size": 48}
            | {"num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1}
            | {"expert_layer_period": 3, "expert_layer_offset": 1, "num_experts": 5}
            | {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}
            | {"mamba_d_state": 12, "mamba_d_conv": 3, "mamba_dt_rank": 8}
            | {"max_position_embeddings": 128, "initializer_range": 0.2, "rms_norm_eps": 1e-2}
        ),
    ),
)
