# SPDX-License-Identifier: Apache-2.0
"""Falcon Mamba 7B, `transformers.models.falcon_mamba`: Mamba that normalizes its step, key and query."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .mamba import RECIPE as MAMBA

RECIPE = replace(
    MAMBA,
    model_type="falcon_mamba",
    architectures=("FalconMambaForCausalLM",),
    special="No attention: Mamba whose step, key and query are normalized by norms without weights.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1), MAMBA.transforms[1]),
    tiny=(Tiny(config={**MAMBA.tiny[0].config, "mixer_rms_eps": 1e-2}),),
)
