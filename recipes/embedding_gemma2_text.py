# SPDX-License-Identifier: Apache-2.0
"""EmbeddingGemma 2, text alone, `transformers.models.embedding_gemma2`.

Unusual: Gemma 4's layers, bidirectional, most with a window; every layer gets a residual signal of its own, from
the embeddings; each token is projected to the size of the text's embedding.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .bert import RECIPE as BERT

_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
_HEADS = {"num_key_value_heads": 2, "head_dim": 24, "rms_norm_eps": 1e-2}
_SIZES = {"hidden_size_per_layer_input": 20, "embedding_dim": 40}
_ROPE_BASES = {"full_attention": 10000.0, "sliding_attention": 100.0}
_ROPE = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in _ROPE_BASES.items()}
_TINY = {**BERT.tiny[0].config, **_LAYER_TYPES, **_HEADS, **_SIZES, "rope_parameters": _ROPE}

RECIPE = replace(
    BERT,
    model_type="embedding_gemma2_text",
    architectures=("EmbeddingGemma2TextModel",),
    special="Gemma's layers, bidirectional; windows and full layers; a signal per layer; a projection of each token.",
    transforms=(rms_norm(lambda config: 8 * config.num_hidden_layers + 2),),
    tiny=(Tiny(config=_TINY),),
)
