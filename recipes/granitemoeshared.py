# SPDX-License-Identifier: Apache-2.0
"""Granite MoE with a shared expert, `transformers.models.granitemoeshared`: an MLP beside the experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .granitemoe import RECIPE as GRANITEMOE

RECIPE = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    architectures=("GraniteMoeSharedForCausalLM",),
    special="Granite MoE with a shared MLP beside the experts, unless its size is 0.",
    tiny=(Tiny(config={**GRANITEMOE.tiny[0].config, "shared_intermediate_size": 40}),),
)
