# SPDX-License-Identifier: Apache-2.0
"""Seed-OSS 36B, `transformers.models.seed_oss`: Llama with biases on query, key and value."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="seed_oss",
    architectures=("SeedOssForCausalLM", "SeedOssForSequenceClassification"),
    special="Query, key and value projections have biases; those of the output and the MLP are optional.",
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "attention_bias": True, "rms_norm_eps": 1e-2}),),
)
