# SPDX-License-Identifier: Apache-2.0
"""MPT 7B and 30B, Replit Code and others of `transformers.models.mpt`.

Unusual: ALiBi in place of positions, one fused query-key-value projection that may be clipped, layer norms without
biases. Its attention does not go through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "n_layers": 4,
    "n_heads": 4,
    "max_seq_len": 128,
    "initializer_range": 0.2,
    "layer_norm_epsilon": 1e-2,
}

RECIPE = Recipe(
    model_type="mpt",
    architectures=("MptForCausalLM",),
    task="text-generation",
    special="ALiBi; fused query-key-value, optionally clipped; layer norms without biases; tied head.",
    # Most published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(config={**_TINY, "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.4}}),
        Tiny(config={**_TINY, "n_heads": 6, "d_model": 96}, name="six_heads"),
    ),
)
