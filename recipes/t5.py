# SPDX-License-Identifier: Apache-2.0
"""T5 and FLAN-T5, `transformers.models.t5`: text to text; and its encoders alone: Sentence-T5, GTR, of image models.

Unusual: no positions but a bias on the scores by distance bucket, computed in the first layer; scores are not scaled.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, rms_norm, row_positions

from .bert import RECIPE as BERT

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 4,
    "num_decoder_layers": 5,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "initializer_factor": 2.0,
    "decoder_start_token_id": 0,
}


def _norms(config: Any) -> int:
    of_decoder = 3 * config.num_decoder_layers + 1 if config.is_encoder_decoder else 0
    return int(2 * config.num_layers + 1 + of_decoder)


RECIPE = replace(
    BERT,
    model_type="t5",
    architectures=("T5EncoderModel", "T5Model", "T5ForConditionalGeneration"),
    special="A bias by distance bucket, made in the first layer; scores are not scaled; norms without a mean.",
    transforms=(
        rms_norm(_norms, suffix="T5LayerNorm"),
        row_positions(lambda config: int(config.is_encoder_decoder)),
    ),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "feed_forward_proj": "gated-gelu"}, name="gated"),
    ),
)
