# SPDX-License-Identifier: Apache-2.0
"""Granite MoE with windows, `transformers.models.granitemoe_swa`: Granite SWA with experts and a shared MLP."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .granite_swa import RECIPE as GRANITE_SWA
from .granitemoeshared import RECIPE as GRANITEMOESHARED

RECIPE = replace(
    GRANITE_SWA,
    model_type="granitemoe_swa",
    architectures=("GraniteMoeSWAForCausalLM",),
    special="Granite's multipliers, attention sinks, a RoPE base for each layer; experts and a shared MLP.",
    transforms=GRANITEMOESHARED.transforms,
    tiny=(Tiny(config={**GRANITEMOESHARED.tiny[0].config, **GRANITE_SWA.tiny[0].config}),),
)
