# SPDX-License-Identifier: Apache-2.0
"""Kimi K2 and K2 Thinking, `qeff_zoo.export.architectures.kimi_k2`: DeepSeek-V3 without groups of experts.

Unusual: the tokenizer is a tiktoken file with the pieces of its authors' code.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .deepseek_v3 import RECIPE as DEEPSEEK_V3

_EXPERTS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_TINY = {**DEEPSEEK_V3.tiny[0].config, **_EXPERTS, "num_nextn_predict_layers": 0}

RECIPE = replace(
    DEEPSEEK_V3,
    model_type="kimi_k2",
    architectures=("KimiK2ForCausalLM", "DeepseekV3ForCausalLM"),
    special="Plain DeepSeek-V3 without groups of experts, and a tiktoken tokenizer.",
    tiny=(Tiny(config=_TINY),),
)
