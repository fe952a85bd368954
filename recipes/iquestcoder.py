# SPDX-License-Identifier: Apache-2.0
"""IQuest-Coder, `transformers.models.iquestcoder`: a configuration of its own over Llama's code."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="iquestcoder",
    architectures=("LlamaForCausalLM", "IQuestCoderForCausalLM"),
    special="Plain Llama; projections may have biases.",
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "attention_bias": True, "mlp_bias": True}),),
)
