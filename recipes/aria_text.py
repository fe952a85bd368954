# SPDX-License-Identifier: Apache-2.0
"""Aria's text model, `transformers.models.aria`: Llama with experts beside shared ones, all of them input-major."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .mixtral import RECIPE as MIXTRAL

_MOE = {"moe_num_experts": 5, "moe_topk": 2, "moe_num_shared_experts": 2}

RECIPE = replace(
    MIXTRAL,
    model_type="aria_text",
    architectures=("AriaTextForCausalLM",),
    special="Every MLP is a block of experts, the top k per token chosen by softmax, beside shared ones.",
    transforms=(
        *MIXTRAL.transforms,
        Transform(name="aria_experts", count=lambda config: config.num_hidden_layers),
    ),
    tiny=(Tiny(config={**MIXTRAL.tiny[0].config, **_MOE}),),
)
