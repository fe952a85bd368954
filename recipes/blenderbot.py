# SPDX-License-Identifier: Apache-2.0
"""Blenderbot, `transformers.models.blenderbot`: answers in a conversation."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="blenderbot",
    architectures=("BlenderbotForConditionalGeneration",),
    special="BART with norms before each block and behind the last, and no norm over the embeddings.",
    transforms=(),
    tiny=BART.tiny[:1],
)
