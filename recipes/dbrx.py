# SPDX-License-Identifier: Apache-2.0
"""DBRX, `transformers.models.dbrx`.

Unusual: queries, keys and values are clipped; norms without a bias; the matrices of all experts are one matrix each,
and the chosen experts' routing weights are divided by a norm that the config names.
"""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, Transform

RECIPE = Recipe(
    model_type="dbrx",
    architectures=("DbrxForCausalLM",),
    task="text-generation",
    special="Clipped queries, keys and values; experts in every layer, stored as one matrix.",
    transforms=(
        Transform(name="dbrx_experts", version=2, count=lambda config: config.num_hidden_layers),
    ),
    shapes=DECODER_SHAPES,
    fixed_kv_heads="its queries, keys and values are made by one matrix",
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "d_model": 64,
                "n_heads": 4,
                "n_layers": 4,
                "max_seq_len": 128,
                "initializer_range": 0.2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 1000.0},
                "ffn_config": {
                    "ffn_hidden_size": 96,
                    "moe_num_experts": 5,
                    "moe_top_k": 2,
                    "moe_normalize_expert_weights": 2.0,
                },
            }
        ),
    ),
)
