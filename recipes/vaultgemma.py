# SPDX-License-Identifier: Apache-2.0
"""VaultGemma 1B, `transformers.models.vaultgemma`: Gemma 2 without the norms after attention and MLP."""

from dataclasses import replace

from qeff_zoo.recipe import rms_norm

from .gemma2 import RECIPE as GEMMA2

RECIPE = replace(
    GEMMA2,
    model_type="vaultgemma",
    architectures=("VaultGemmaForCausalLM",),
    special="Soft-caps on scores and logits; sliding and full layers alternate; norms before each block alone.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1, offset=1.0),),
)
