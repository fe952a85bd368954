# SPDX-License-Identifier: Apache-2.0
"""UniSpeech fine-tuned by CTC, `transformers.models.unispeech`: labels are phonemes of many languages."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="unispeech",
    architectures=("UniSpeechForCTC", "UniSpeechForSequenceClassification"),
    special="Wav2Vec 2.0's encoder, trained with labels of phonemes.",
    tiny=(Tiny(config=W2V.tiny[0].config),),
)
