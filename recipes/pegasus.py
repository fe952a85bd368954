# SPDX-License-Identifier: Apache-2.0
"""Pegasus, `transformers.models.pegasus`: summaries."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="pegasus",
    architectures=("PegasusForConditionalGeneration",),
    special="Positions of sines; norms before each block and behind the last.",
    transforms=(),
    tiny=BART.tiny[:1],
)
