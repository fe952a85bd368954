# SPDX-License-Identifier: Apache-2.0
"""LASR by CTC, `transformers.models.lasr`: google/medasr.

Unusual: Conformer layers with rotary positions, whose halves count unequally; labels are pieces, the first the blank.
"""

from dataclasses import replace

from qeff_zoo.recipe import Shape, Tiny

from .parakeet_ctc import RECIPE as PARAKEET

_ENCODER_CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "conv_kernel_size": 6,
    "subsampling_conv_channels": 24,
    "num_mel_bins": 16,
    "initializer_range": 0.2,
}
_ODD_KERNEL = {**_ENCODER_CONFIG, "conv_kernel_size": 5, "convolution_bias": True}
_LABELS = {"vocab_size": 37, "pad_token_id": 0}

RECIPE = replace(
    PARAKEET,
    model_type="lasr_ctc",
    architectures=("LasrForCTC",),
    special="Conformer layers with rotary positions over mel features, shortened four times; labels are pieces.",
    shapes={  # lengths in frames of 10 ms, of which the first label takes 13
        "latency": Shape(seq_lens=(1500, 3000)),
        "throughput": Shape(seq_lens=(3000,), batch_size=8),
    },
    tiny=(
        Tiny(config={**_LABELS, "encoder_config": _ENCODER_CONFIG}),
        Tiny(config={**_LABELS, "encoder_config": _ODD_KERNEL}, name="odd"),
    ),
)
