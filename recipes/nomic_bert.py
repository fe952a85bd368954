# SPDX-License-Identifier: Apache-2.0
"""Nomic Embed 1 and 1.5, `transformers.models.nomic_bert`: BERT with RoPE and gated MLPs."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="nomic_bert",
    architectures=(
        "NomicBertModel",
        "NomicBertForMaskedLM",
        "NomicBertForSequenceClassification",
        "NomicBertForTokenClassification",
    ),
    special="RoPE instead of learned positions, gated MLPs without biases.",
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "head_dim": 24,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            }
        ),
    ),
)
