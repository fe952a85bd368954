# SPDX-License-Identifier: Apache-2.0
"""Falcon 7B, 40B, 180B and RW, `transformers.models.falcon`.

Unusual: one fused query-key-value projection in three layouts, attention and MLP in parallel, and ALiBi instead of RoPE
in Falcon-RW. Its attention does not go through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_OLD_ARCHITECTURE = {"new_decoder_architecture": False}
_NEW_ARCHITECTURE = {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
_ALIBI = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}

RECIPE = Recipe(
    model_type="falcon",
    architectures=("FalconForCausalLM", "FalconForSequenceClassification"),
    task="text-generation",
    special="Fused query-key-value, parallel attention and MLP; RoPE, or ALiBi in Falcon-RW.",
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    fixed_kv_heads="its queries, keys and values are made by one matrix",
    tiny=(
        Tiny(config=_TINY | _OLD_ARCHITECTURE | {"multi_query": True}),
        Tiny(config=_TINY | _NEW_ARCHITECTURE, name="new_decoder"),
        Tiny(config=_TINY | _OLD_ARCHITECTURE | _ALIBI, name="alibi"),
    ),
)
