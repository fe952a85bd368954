# SPDX-License-Identifier: Apache-2.0
"""The encoders of UMT5, `transformers.models.umt5`, of image and video models too: a bias by distance in each layer."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .t5 import RECIPE as T5

RECIPE = replace(
    T5,
    model_type="umt5",
    architectures=("UMT5EncoderModel", "UMT5Model", "UMT5ForConditionalGeneration"),
    special="T5's encoder with gated MLPs and, in each layer, its own bias by distance bucket.",
    transforms=(rms_norm(lambda config: 2 * config.num_layers + 1, suffix="UMT5LayerNorm"),),
    tiny=(Tiny(config=T5.tiny[0].config),),
)
