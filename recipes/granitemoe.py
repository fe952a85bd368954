# SPDX-License-Identifier: Apache-2.0
"""PowerMoE and Granite 3 MoE, `transformers.models.granitemoe`: Granite with a block of experts for every MLP."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .granite import RECIPE as GRANITE

RECIPE = replace(
    GRANITE,
    model_type="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    special="Granite's four multipliers, and experts weighted by a softmax over the chosen ones alone.",
    transforms=(*GRANITE.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **GRANITE.tiny[0].config,
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
            }
        ),
    ),
)
