# SPDX-License-Identifier: Apache-2.0
"""GTE multilingual, `transformers.models.gte`: BERT with RoPE and gated MLPs."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="gte",
    architectures=(
        "GteModel",
        "GteForMaskedLM",
        "GteForSequenceClassification",
        "GteForTokenClassification",
    ),
    special="RoPE instead of learned positions, and gated MLPs.",
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            }
        ),
    ),
)
