# SPDX-License-Identifier: Apache-2.0
"""ESM C, protein language models, `transformers.models.esmc`.

Unusual: a layer norm over all query heads and one over all keys; what a block adds is divided by a scale of depth.
"""

from dataclasses import replace

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="esmc",
    architectures=(
        "EsmcModel",
        "EsmcForMaskedLM",
        "EsmcForSequenceClassification",
        "EsmcForTokenClassification",
    ),
    special="Proteins: RoPE, gated MLPs, layer norms over all queries and over all keys; residuals are scaled.",
    tiny=BERT.tiny,
)
