# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Parakeet CTC, `transformers.models.parakeet`: parakeet-ctc-0.6b and -1.1b.

Unusual: log-mel features, an eighth of whose frames remain; FastConformer layers with relative positions.
"""

from dataclasses import replace

from qeff_zoo.recipe import Shape, Tiny

from .wav2vec2 import RECIPE as W2V

_ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_mel_bins": 16,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 16,
    "max_position_embeddings": 5000,
    "initializer_range": 0.2,
}

RECIPE = replace(
    W2V,
    model_type="parakeet_ctc",
    architectures=("ParakeetForCTC",),
    special="FastConformer over log-mel features, of which an eighth of the frames remains.",
    transforms=(),
    shapes={
        "latency": Shape(seq_lens=(500, 1500, 3000)),
        "throughput": Shape(seq_lens=(3000,), batch_size=8),
    },
    tiny=(Tiny(config={"vocab_size": 37, "pad_token_id": 0, "encoder_config": _ENCODER}),),
)
