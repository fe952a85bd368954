# SPDX-License-Identifier: Apache-2.0
"""ModernBERT, `transformers.models.modernbert`.

Unusual: two layers with a local two-sided window, then a full one, each kind with its RoPE base; the first layer
has no norm of its own; no biases.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="modernbert",
    architectures=(
        "ModernBertModel",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
        "ModernBertForQuestionAnswering",
        "ModernBertForMultipleChoice",
    ),
    special="RoPE; full layers between pairs of layers with a two-sided window, each kind with its RoPE base.",
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "num_hidden_layers": 7,
                "global_attn_every_n_layers": 3,
                "local_attention": 10,
                "global_rope_theta": 1000.0,
                "local_rope_theta": 50.0,
                **{f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")},
            }
        ),
    ),
)
