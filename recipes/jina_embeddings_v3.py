# SPDX-License-Identifier: Apache-2.0
"""Jina Embeddings 3, `transformers.models.jina_embeddings_v3`: XLM-RoBERTa with RoPE, without its task adapters."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="jina_embeddings_v3",
    architectures=(
        "JinaEmbeddingsV3Model",
        "JinaEmbeddingsV3ForMaskedLM",
        "JinaEmbeddingsV3ForSequenceClassification",
        "JinaEmbeddingsV3ForTokenClassification",
        "JinaEmbeddingsV3ForQuestionAnswering",
    ),
    special="RoPE instead of learned positions; the task adapters are not part of it.",
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "type_vocab_size": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            }
        ),
    ),
)
