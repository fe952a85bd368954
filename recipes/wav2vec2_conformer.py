# SPDX-License-Identifier: Apache-2.0
"""Wav2Vec 2.0 with Conformer layers, fine-tuned by CTC, `transformers.models.wav2vec2_conformer`."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, frames

from .wav2vec2 import RECIPE as W2V

_CONFIG = {**W2V.tiny[0].config, "conv_depthwise_kernel_size": 5}

RECIPE = replace(
    W2V,
    model_type="wav2vec2-conformer",
    architectures=("Wav2Vec2ConformerForCTC", "Wav2Vec2ConformerForSequenceClassification"),
    special="Wav2Vec 2.0 with Conformer layers: relative or rotary positions, and a convolution in each.",
    transforms=(
        frames(lambda config: 1 + config.num_hidden_layers + (config.feat_extract_norm == "group")),
    ),
    tiny=(
        Tiny(config=_CONFIG),
        Tiny(config={**_CONFIG, "position_embeddings_type": "rotary"}, name="rotary"),
    ),
)
