# SPDX-License-Identifier: Apache-2.0
"""HuBERT fine-tuned by CTC, `transformers.models.hubert`: hubert-large-ls960-ft."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="hubert",
    architectures=("HubertForCTC", "HubertForSequenceClassification"),
    special="Wav2Vec 2.0's encoder, trained otherwise; a norm before the features are widened.",
    tiny=(Tiny(config={**W2V.tiny[0].config, "do_stable_layer_norm": True}),),
)
