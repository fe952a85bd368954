# SPDX-License-Identifier: Apache-2.0
"""OLMo 1B and 7B, `transformers.models.olmo`: Llama with layer norms that have no weights, and clipped projections."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .phi import RECIPE as PHI
from .qwen2 import RECIPE as QWEN2

_TINY = {key: value for key, value in QWEN2.tiny[1].config.items() if "window" not in key} | {
    "pad_token_id": 0
}

RECIPE = replace(
    PHI,
    model_type="olmo",
    architectures=("OlmoForCausalLM", "OlmoForSequenceClassification"),
    special="Layer norms without weight or bias; query, key and value may be clipped.",
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "clip_qkv": 0.7, "tie_word_embeddings": False}, name="clip"),
    ),
)
