# SPDX-License-Identifier: Apache-2.0
"""The encoders of mT5, `transformers.models.mt5`: T5 of a hundred languages, with gated MLPs."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .t5 import RECIPE as T5

RECIPE = replace(
    T5,
    model_type="mt5",
    architectures=("MT5EncoderModel", "MT5Model", "MT5ForConditionalGeneration"),
    special="T5's encoder with gated MLPs: a bias by distance bucket, made in the first layer.",
    transforms=(rms_norm(lambda config: 2 * config.num_layers + 1, suffix="MT5LayerNorm"),),
    tiny=(Tiny(config=T5.tiny[0].config),),
)
