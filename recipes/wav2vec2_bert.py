# SPDX-License-Identifier: Apache-2.0
"""Wav2Vec2-BERT fine-tuned by CTC, `transformers.models.wav2vec2_bert`: w2v-bert-2.0 and its fine-tunes.

Unusual: reads Kaldi's mel features, two frames of 10 ms at a time; Conformer layers with keys relative in distance.
"""

from dataclasses import replace

from qeff_zoo.recipe import FRAME_SHAPES, Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="wav2vec2-bert",
    architectures=("Wav2Vec2BertForCTC", "Wav2Vec2BertForSequenceClassification"),
    special="Conformer layers over Kaldi's mel features; scores by clamped distance.",
    transforms=(),
    shapes=FRAME_SHAPES,
    tiny=(
        Tiny(
            config={
                "vocab_size": 37,
                "hidden_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "feature_projection_input_dim": 32,
                "conv_depthwise_kernel_size": 5,
                "left_max_position_embeddings": 8,
                "right_max_position_embeddings": 4,
                "initializer_range": 0.2,
                "pad_token_id": 0,
            }
        ),
    ),
)
