# SPDX-License-Identifier: Apache-2.0
"""PLBART, `transformers.models.plbart`: code to text, text to code, and from one programming language to another."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="plbart",
    architectures=("PLBartForConditionalGeneration",),
    special="BART, whose answers begin with the token of a language.",
    tiny=BART.tiny[:1],
)
