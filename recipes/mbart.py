# SPDX-License-Identifier: Apache-2.0
"""mBART and mBART-50, `transformers.models.mbart`: translation between fifty languages, each with a token."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="mbart",
    architectures=("MBartForConditionalGeneration",),
    special="BART with norms before each block and behind the last; an answer begins with its language's token.",
    tiny=BART.tiny[:1],
)
