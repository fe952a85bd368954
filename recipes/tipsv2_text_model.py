# SPDX-License-Identifier: Apache-2.0
"""The text encoders of TIPS 2, `transformers.models.tipsv2`: sinusoidal positions, scaled embeddings."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="tipsv2_text_model",
    architectures=("Tipsv2TextModel",),
    special="Pre-norm encoder with sinusoidal positions; embeddings are scaled by sqrt(hidden).",
    tiny=(Tiny(config={**BERT.tiny[0].config, "initializer_range": 0.3}),),
)
