# SPDX-License-Identifier: Apache-2.0
"""The encoders of T5, `transformers.models.t5`: Sentence-T5, GTR, and the text encoders of image models.

Unusual: no positions but a bias on the scores by distance bucket, made in the first layer; scores are not scaled.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .bert import RECIPE as BERT

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 4,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "initializer_factor": 2.0,
}

RECIPE = replace(
    BERT,
    model_type="t5",
    architectures=("T5EncoderModel", "T5Model", "T5ForConditionalGeneration"),
    special="The encoder alone: a bias by distance bucket, made in the first layer; scores are not scaled.",
    transforms=(rms_norm(lambda config: 2 * config.num_layers + 1, suffix="T5LayerNorm"),),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "feed_forward_proj": "gated-gelu"}, name="gated"),
    ),
)
