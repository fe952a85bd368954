# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 0.3B, `transformers.models.ernie4_5`: Llama with RoPE on interleaved pairs and a tied head."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="ernie4_5",
    architectures=("Ernie4_5ForCausalLM",),
    special="Llama with RoPE on interleaved pairs, a tied head, and biases on every projection if use_bias is set.",
    tiny=(
        Tiny(config={**LLAMA.tiny[0].config, "rms_norm_eps": 1e-2}),
        Tiny(config={**LLAMA.tiny[0].config, "use_bias": True}, name="biased"),
    ),
)
