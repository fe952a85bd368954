# SPDX-License-Identifier: Apache-2.0
"""InternLM3, `transformers.models.internlm3`: a configuration of its own over Llama's code."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="internlm3",
    architectures=("LlamaForCausalLM", "InternLM3ForCausalLM"),
    special="Plain Llama; projections may have biases.",
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "attention_bias": True, "mlp_bias": True}),),
)
