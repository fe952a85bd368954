# SPDX-License-Identifier: Apache-2.0
"""Mixtral 8x7B and 8x22B, `transformers.models.mixtral`: Mistral with a block of experts for every MLP."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="mixtral",
    architectures=("MixtralForCausalLM", "MixtralForSequenceClassification"),
    special="Every MLP is a block of experts, the top k per token chosen by softmax; optional sliding window.",
    transforms=(*LLAMA.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "sliding_window": 7,
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
            }
        ),
    ),
)
