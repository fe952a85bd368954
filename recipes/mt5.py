# SPDX-License-Identifier: Apache-2.0
"""mT5, `transformers.models.mt5`: T5 of a hundred languages, with gated MLPs; and its encoders alone."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .t5 import RECIPE as T5

RECIPE = replace(
    T5,
    model_type="mt5",
    architectures=("MT5EncoderModel", "MT5Model", "MT5ForConditionalGeneration"),
    special="T5 with gated MLPs: a bias by distance bucket, made in the first layer.",
    transforms=(
        replace(T5.transforms[0], parameters={"suffix": "MT5LayerNorm"}),
        *T5.transforms[1:],
    ),
    tiny=(
        Tiny(config={**T5.tiny[0].config, "tie_word_embeddings": False, "initializer_factor": 1.0}),
    ),
)
