# SPDX-License-Identifier: Apache-2.0
"""data2vec for audio, fine-tuned by CTC, `transformers.models.data2vec`: data2vec-audio-base-960h."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, frames

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="data2vec-audio",
    architectures=("Data2VecAudioForCTC", "Data2VecAudioForSequenceClassification"),
    special="Wav2Vec 2.0's encoder whose positions are a stack of normalized convolutions.",
    transforms=(frames(lambda config: config.num_conv_pos_embeddings),),
    tiny=(
        Tiny(
            config={**W2V.tiny[0].config, "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 7}
        ),
    ),
)
