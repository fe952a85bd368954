# SPDX-License-Identifier: Apache-2.0
"""CodeGen 1 and 2, `transformers.models.codegen`: GPT-J with query, value and key fused, in four parts."""

from dataclasses import replace

from .gptj import RECIPE as GPTJ

RECIPE = replace(
    GPTJ,
    model_type="codegen",
    architectures=("CodeGenForCausalLM",),
    special="GPT-J with one fused projection of query, value and key, laid out in four parts.",
)
