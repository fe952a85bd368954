# SPDX-License-Identifier: Apache-2.0
"""Ministral 8B of 2024, `transformers.models.ministral`: Mistral whose layers alternate between a window and none."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mistral import RECIPE as MISTRAL

RECIPE = replace(
    MISTRAL,
    model_type="ministral",
    # Published as `model_type` "mistral" with `layer_types`.
    architectures=(
        *("MinistralForCausalLM", "MinistralForSequenceClassification"),
        *("MistralForCausalLM", "MistralForSequenceClassification"),
    ),
    special="Sliding and full layers in one model, in any order that the config names.",
    variants={},
    tiny=(
        Tiny(
            config={
                **MISTRAL.tiny[0].config,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            }
        ),
    ),
)
