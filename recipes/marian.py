# SPDX-License-Identifier: Apache-2.0
"""Marian, `transformers.models.marian`: the translations of OPUS-MT, one checkpoint for each pair of languages."""

from dataclasses import replace

from qeff_zoo.recipe import Transform

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="marian",
    architectures=("MarianMTModel",),
    special="Positions of sines, which no checkpoint has; an answer begins with padding.",
    transforms=(Transform(name="sine_positions", count=lambda config: 2),),
    tiny=BART.tiny[:1],
)
