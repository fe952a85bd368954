# SPDX-License-Identifier: Apache-2.0
"""M2M-100 and NLLB, `transformers.models.m2m_100`: translation between a hundred or two hundred languages."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="m2m_100",
    architectures=("M2M100ForConditionalGeneration",),
    special="Positions of sines that begin behind that of padding; an answer begins with its language's token.",
    tiny=BART.tiny[:1],
)
