# SPDX-License-Identifier: Apache-2.0
"""EuroBERT, `transformers.models.eurobert`: Llama with bidirectional attention."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="eurobert",
    architectures=(
        "EuroBertModel",
        "EuroBertForMaskedLM",
        "EuroBertForSequenceClassification",
        "EuroBertForTokenClassification",
    ),
    special="Llama's layers with bidirectional attention.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "num_key_value_heads": 2,
                "head_dim": 24,
                **{f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "mask")},
            }
        ),
    ),
)
