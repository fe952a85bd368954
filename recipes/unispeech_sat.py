# SPDX-License-Identifier: Apache-2.0
"""UniSpeech-SAT fine-tuned by CTC, `transformers.models.unispeech_sat`: trained to separate speakers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="unispeech-sat",
    architectures=("UniSpeechSatForCTC", "UniSpeechSatForSequenceClassification"),
    special="HuBERT's encoder, trained to distinguish speakers.",
    tiny=(Tiny(config=W2V.tiny[0].config),),
)
