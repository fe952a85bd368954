# SPDX-License-Identifier: Apache-2.0
"""Marian, `transformers.models.marian`: the translations of OPUS-MT, one checkpoint for each pair of languages."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="marian",
    architectures=("MarianMTModel",),
    special="Positions of sines; halves of their own vocabularies in some checkpoints; an answer begins with padding.",
    transforms=(),
    tiny=BART.tiny[:1],
)
