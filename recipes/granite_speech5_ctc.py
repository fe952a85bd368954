# SPDX-License-Identifier: Apache-2.0
"""Granite Speech 5 by CTC, `transformers.models.granite_speech5`: granite-speech-5.0-470m-turboctc.

Unusual: Conformer layers that attend within blocks, two of which halve the frames; labels of the middle go on.
"""

from dataclasses import replace

from qeff_zoo.recipe import Shape, Tiny

from .parakeet_ctc import RECIPE as PARAKEET

_ENCODER_CONFIG = {
    "vocab_size": 37,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_mel_bins": 4,
    "context_size": 16,
    "max_position_embeddings": 16,
    "conv_kernel_size": 5,
    "initializer_range": 0.2,
}

RECIPE = replace(
    PARAKEET,
    model_type="granite_speech5_ctc",
    architectures=("GraniteSpeech5ForCTC",),
    special="Conformer layers that attend within blocks of 2.6 seconds; labels of the middle go into the states again.",
    shapes={  # lengths in frames of 20 ms
        "latency": Shape(seq_lens=(500, 1000, 1500)),
        "throughput": Shape(seq_lens=(1500,), batch_size=8),
    },
    tiny=(Tiny(config={"vocab_size": 37, "pad_token_id": 36, "encoder_config": _ENCODER_CONFIG}),),
)
