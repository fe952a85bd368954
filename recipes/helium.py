# SPDX-License-Identifier: Apache-2.0
"""Helium 1 2B, `transformers.models.helium`: Llama whose RoPE rotates interleaved pairs of a head."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA
from .olmo2 import RECIPE as OLMO2

RECIPE = replace(
    LLAMA,
    model_type="helium",
    architectures=("HeliumForCausalLM", "HeliumForSequenceClassification"),
    special="RoPE rotates interleaved pairs, not the two halves of a head.",
    # The output projection is square: head_dim must be hidden / heads.
    tiny=(Tiny(config={**OLMO2.tiny[0].config, "head_dim": 16}),),
)
