# SPDX-License-Identifier: Apache-2.0
"""The text model of Inkling, `transformers.models.inkling`.

Unusual: no RoPE but a relative bias that each token mixes by itself; four short convolutions in every layer.
"""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, Transform, experts, rms_norm

_SLIDING, _FULL = "hybrid_sliding", "hybrid"

RECIPE = Recipe(
    model_type="inkling_text",
    architectures=("InklingForCausalLM",),
    task="text-generation",
    special="Relative biases and short convolutions in place of RoPE; sliding layers with other heads; shared experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 2),
        experts(),
        Transform(name="relative_attention", count=lambda config: config.num_hidden_layers),
    ),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96}
            | {"num_hidden_layers": 5, "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL]}
            | {"mlp_layer_types": ["dense", "sparse", "dense", "dense", "sparse"]}
            | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}
            | {"swa_num_attention_heads": 6, "swa_num_key_value_heads": 3, "swa_head_dim": 20}
            | {"sliding_window_size": 7, "d_rel": 6, "rel_extent": 12, "conv_kernel_size": 3}
            | {"log_scaling_n_floor": 4, "log_scaling_alpha": 0.5, "rms_norm_eps": 1e-2}
            | {"moe_intermediate_size": 48, "n_routed_experts": 5, "num_experts_per_tok": 2}
            | {"n_shared_experts": 2, "route_scale": 1.7, "logits_mup_width_multiplier": 3.0}
            | {"max_position_embeddings": 128, "initializer_range": 0.2}
        ),
    ),
)
