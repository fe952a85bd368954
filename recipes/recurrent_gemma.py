# SPDX-License-Identifier: Apache-2.0
"""RecurrentGemma 2B and 9B, `transformers.models.recurrent_gemma`: gated linear recurrences and sliding attention."""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, Transform, rms_norm, window_cache

RECIPE = Recipe(
    model_type="recurrent_gemma",
    architectures=("RecurrentGemmaForCausalLM",),
    task="text-generation",
    special="Two blocks of RG-LRU to one of sliding attention; half of each head rotated; soft-capped logits.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1, offset=1.0),
        Transform(
            name="rg_lru",
            version=2,
            count=lambda config: config.layers_block_type.count("linear_attention"),
        ),
        window_cache(),
    ),
    shapes=DECODER_SHAPES,
    retains_context=False,
    tiny=(
        Tiny(
            config={"vocab_size": 257, "hidden_size": 64, "intermediate_size": 192, "lru_width": 80}
            | {"num_hidden_layers": 6, "block_types": ["recurrent", "recurrent", "attention"]}
            | {"num_attention_heads": 5, "num_key_value_heads": 1, "attention_window_size": 7}
            | {"conv1d_width": 3, "logits_soft_cap": 5.0, "rms_norm_eps": 1e-2}
            | {"w_init_variance_scale": 0.5, "initializer_range": 0.2}
        ),
    ),
)
