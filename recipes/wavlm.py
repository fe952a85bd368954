# SPDX-License-Identifier: Apache-2.0
"""WavLM fine-tuned by CTC, `transformers.models.wavlm`: wavlm-libri-clean-100h-base."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="wavlm",
    architectures=("WavLMForCTC", "WavLMForSequenceClassification"),
    special="Wav2Vec 2.0's encoder with a gated bias by distance bucket, made in the first layer.",
    tiny=(Tiny(config={**W2V.tiny[0].config, "num_buckets": 32, "max_bucket_distance": 80}),),
)
