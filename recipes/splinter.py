# SPDX-License-Identifier: Apache-2.0
"""Splinter, `transformers.models.splinter`: BERT without a pooler."""

from dataclasses import replace

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="splinter",
    architectures=(
        "SplinterModel",
        "SplinterForPreTraining",
        "SplinterForQuestionAnswering",
    ),
    special="Plain BERT, without a pooler.",
)
