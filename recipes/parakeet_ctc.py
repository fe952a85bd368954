# SPDX-License-Identifier: Apache-2.0
"""Parakeet by CTC, `transformers.models.parakeet`: parakeet-ctc-0.6b and 1.1b of NeMo.

Unusual: Fast Conformer layers over mel features, which two-dimensional convolutions shorten; labels are pieces.
"""

from qeff_zoo.recipe import Recipe, Shape, Tiny

from ._tiny_parts import FAST_CONFORMER

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
        Tiny(config={"vocab_size": 37, "pad_token_id": 36, "encoder_config": FAST_CONFORMER}),
        Tiny(
            config={
                "vocab_size": 37,
                "pad_token_id": 36,
                "encoder_config": {**FAST_CONFORMER, "scale_input": False, "attention_bias": False},
            },
            name="plain",
        ),
    ),
)
