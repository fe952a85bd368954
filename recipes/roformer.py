# SPDX-License-Identifier: Apache-2.0
"""RoFormer, `transformers.models.roformer`: BERT with RoPE on interleaved pairs, with a fixed base."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="roformer",
    architectures=(
        "RoFormerModel",
        "RoFormerForMaskedLM",
        "RoFormerForSequenceClassification",
        "RoFormerForTokenClassification",
        "RoFormerForQuestionAnswering",
    ),
    special="BERT with RoPE on interleaved pairs; embeddings may be narrower than the layers.",
    tiny=(Tiny(config={**BERT.tiny[0].config, "embedding_size": 48}),),
)
