# SPDX-License-Identifier: Apache-2.0
"""Mamba 2 and Codestral Mamba, `transformers.models.mamba2`: a state-space model, no attention at all."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mamba import RECIPE as MAMBA

_TINY = {key: value for key, value in MAMBA.tiny[0].config.items() if key != "time_step_rank"}

RECIPE = replace(
    MAMBA,
    model_type="mamba2",
    architectures=("Mamba2ForCausalLM",),
    special="No attention: a short convolution and a state-space recurrence per layer, so its states do not grow.",
    tiny=(Tiny(config={**_TINY, "num_heads": 8, "head_dim": 16, "n_groups": 2}),),
)
