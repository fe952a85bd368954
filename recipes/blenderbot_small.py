# SPDX-License-Identifier: Apache-2.0
"""Blenderbot of 90 million parameters, `transformers.models.blenderbot_small`: answers in a conversation."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="blenderbot-small",
    architectures=("BlenderbotSmallForConditionalGeneration",),
    special="BART whose decoder has its norm over the embeddings before positions are added.",
    transforms=(),
    tiny=BART.tiny[:1],
)
