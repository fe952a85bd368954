# SPDX-License-Identifier: Apache-2.0
"""Wav2Vec 2.0 fine-tuned by CTC, `transformers.models.wav2vec2`: wav2vec2-base-960h, XLSR and their fine-tunes.

Unusual: strided convolutions over samples, the first with a norm over time; positions are a convolution.
"""

from qeff_zoo.recipe import AUDIO_SHAPES, Recipe, Tiny, frames

_TINY = {
    "vocab_size": 37,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}

RECIPE = Recipe(
    model_type="wav2vec2",
    architectures=("Wav2Vec2ForCTC", "Wav2Vec2ForSequenceClassification"),
    task="automatic-speech-recognition",
    special="Labels of frames by CTC: strided convolutions over samples, the first normalized over time.",
    rev=2,
    transforms=(frames(lambda config: 1 + (config.feat_extract_norm == "group")),),
    shapes=AUDIO_SHAPES,
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config={**_TINY, "feat_extract_norm": "layer", "do_stable_layer_norm": True},
            name="stable",
        ),
    ),
)
