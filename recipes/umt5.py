# SPDX-License-Identifier: Apache-2.0
"""UMT5, `transformers.models.umt5`: text to text; and its encoders alone, of image and video models too."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, row_positions

from .t5 import RECIPE as T5

RECIPE = replace(
    T5,
    model_type="umt5",
    architectures=("UMT5EncoderModel", "UMT5Model", "UMT5ForConditionalGeneration"),
    special="T5 with gated MLPs and, in each layer, its own bias by distance bucket.",
    transforms=(
        replace(T5.transforms[0], parameters={"suffix": "UMT5LayerNorm"}),
        row_positions(lambda config: config.num_decoder_layers if config.is_encoder_decoder else 0),
    ),
    tiny=(Tiny(config={**T5.tiny[0].config, "tie_word_embeddings": False}),),
)
