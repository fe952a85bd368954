# SPDX-License-Identifier: Apache-2.0
"""UltraBERT, `transformers.models.ultrabert`.

Unusual: Llama's layers, bidirectional; sliding layers with a two-sided window, and full ones, each kind with its RoPE.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .bert import RECIPE as BERT

_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
_SIZES = {"head_dim": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-2}
_ROPE_BASES = {"full_attention": 10000.0, "sliding_attention": 100.0}
_ROPE = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in _ROPE_BASES.items()}

RECIPE = replace(
    BERT,
    model_type="ultrabert",
    architectures=(
        "UltrabertModel",
        "UltrabertForMaskedLM",
        "UltrabertForSequenceClassification",
        "UltrabertForTokenClassification",
        "UltrabertForQuestionAnswering",
    ),
    special="Llama's layers, bidirectional; sliding layers and full ones, each kind with its RoPE base.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(config={**BERT.tiny[0].config, **_LAYER_TYPES, **_SIZES, "rope_parameters": _ROPE}),
    ),
)
