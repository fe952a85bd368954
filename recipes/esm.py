# SPDX-License-Identifier: Apache-2.0
"""ESM-1b and ESM-2, protein language models, `transformers.models.esm`.

Unusual: norms before each block; RoPE, or learned positions after the padding id; embeddings are scaled by how many
tokens are masked.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

_TINY = {**BERT.tiny[0].config, "pad_token_id": 1, "mask_token_id": 7}
_ROTARY = {"position_embedding_type": "rotary", "token_dropout": True}

RECIPE = replace(
    BERT,
    model_type="esm",
    architectures=(
        "EsmModel",
        "EsmForMaskedLM",
        "EsmForSequenceClassification",
        "EsmForTokenClassification",
    ),
    special="Proteins: norms before each block; RoPE or RoBERTa's positions; embeddings scaled by the share of masks.",
    positions_after_padding=True,
    tiny=(
        Tiny(config=_TINY | _ROTARY),
        Tiny(config=_TINY | {"emb_layer_norm_before": True}, name="learned"),
    ),
)
