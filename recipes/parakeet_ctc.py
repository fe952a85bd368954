# SPDX-License-Identifier: Apache-2.0
"""Parakeet by CTC, `transformers.models.parakeet`: parakeet-ctc-0.6b and 1.1b of NeMo.

Unusual: Fast Conformer layers over mel features, which two-dimensional convolutions shorten; labels are pieces.
"""

from qeff_zoo.recipe import Recipe, Shape, Tiny

ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4),
    "intermediate_size": 96,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 24,
    "num_mel_bins": 16,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="parakeet_ctc",
    architectures=("ParakeetForCTC",),
    task="automatic-speech-recognition",
    special="Fast Conformer layers over mel features, shortened eight times by convolutions; labels are pieces.",
    shapes={  # lengths in frames of 10 ms
        "latency": Shape(seq_lens=(500, 1500, 3000)),
        "throughput": Shape(seq_lens=(3000,), batch_size=8),
    },
    tiny=(
        Tiny(config={"vocab_size": 37, "pad_token_id": 36, "encoder_config": ENCODER}),
        Tiny(
            config={
                "vocab_size": 37,
                "pad_token_id": 36,
                "encoder_config": {**ENCODER, "scale_input": False, "attention_bias": False},
            },
            name="plain",
        ),
    ),
)
