# SPDX-License-Identifier: Apache-2.0
"""Speech2Text of fairseq, `transformers.models.speech_to_text`: English speech to text, or to another language.

Unusual: reads Kaldi's mel features, four frames of 10 ms at a time; positions of sines that no checkpoint has.
"""

from dataclasses import replace

from qeff_zoo.recipe import AUDIO_SEQ2SEQ_SHAPES, Recipe, Tiny, frames, row_positions

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 4,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "conv_channels": 48,
    "input_feat_per_channel": 16,
    "max_source_positions": 400,
    "max_target_positions": 64,
    "init_std": 0.2,
}

RECIPE = Recipe(
    model_type="speech_to_text",
    architectures=("Speech2TextForConditionalGeneration",),
    task="speech-seq2seq",
    special="An encoder of Kaldi's mel features, halved twice by convolutions; positions of sines.",
    transforms=(frames(lambda config: config.num_conv_layers), row_positions()),
    shapes={  # lengths in frames of 10 ms
        name: replace(
            shape, seq_lens=tuple(length // 160 for length in shape.seq_lens), inputs_per_row=4
        )
        for name, shape in AUDIO_SEQ2SEQ_SHAPES.items()
    },
    tiny=(Tiny(config=_TINY), Tiny(config={**_TINY, "scale_embedding": False}, name="unscaled")),
)
