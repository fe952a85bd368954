# SPDX-License-Identifier: Apache-2.0
"""Zamba 7B, `transformers.models.zamba`: Mamba layers, and one attention block that many of them share."""

from typing import Any

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, recurrence, rms_norm


def _norms(config: Any) -> int:
    return int(config.num_hidden_layers + 1 + 2 * config.layers_block_type.count("hybrid"))


RECIPE = Recipe(
    model_type="zamba",
    architectures=("ZambaForCausalLM",),
    task="text-generation",
    special="Mamba with several heads; a shared block of attention without positions also reads the embeddings.",
    transforms=(rms_norm(_norms), recurrence(lambda config: config.num_hidden_layers)),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96}
            | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
            | {"layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 2}
            | {"mamba_d_state": 12, "mamba_d_conv": 3, "mamba_dt_rank": 8, "rms_norm_eps": 1e-2}
            | {"max_position_embeddings": 128, "initializer_range": 0.2}
        ),
    ),
)
