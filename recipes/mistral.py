# SPDX-License-Identifier: Apache-2.0
"""Mistral 7B and its relatives, `transformers.models.mistral`: Llama with a sliding window over all layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="mistral",
    architectures=("MistralForCausalLM", "MistralForSequenceClassification", "MistralModel"),
    special="Llama with a sliding window over all layers, where the config names one.",
    variants={"layer_types": "ministral"},
    tiny=(
        Tiny(config={**LLAMA.tiny[0].config, "sliding_window": 7}),
        Tiny(config={**LLAMA.tiny[0].config, "sliding_window": None}, name="full"),
    ),
)
