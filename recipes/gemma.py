# SPDX-License-Identifier: Apache-2.0
"""Gemma 1 and CodeGemma, `transformers.models.gemma`.

Unusual: norms store weight - 1, embeddings are scaled by sqrt(hidden) and tied to the head, the gate is GELU.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="gemma",
    architectures=("GemmaForCausalLM", "GemmaForSequenceClassification", "GemmaModel"),
    special="Llama with norms that store weight - 1, embeddings scaled by sqrt(hidden), and a tied head.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1, offset=1.0),),
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "rms_norm_eps": 1e-2, "attention_bias": True}),),
)
