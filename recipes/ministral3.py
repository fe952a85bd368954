# SPDX-License-Identifier: Apache-2.0
"""Ministral 3 and other Mistral checkpoints of 2025, `transformers.models.ministral3`.

Unusual: queries are scaled by a factor that grows with their position, beyond the context of pre-training.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mistral import RECIPE as MISTRAL

# The factor changes every `original_max_position_embeddings` positions.
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 5,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 2.0,
    "llama_4_scaling_beta": 0.7,
}
_TINY = {**MISTRAL.tiny[0].config, "rope_parameters": _ROPE}

RECIPE = replace(
    MISTRAL,
    model_type="ministral3",
    architectures=("Ministral3ForCausalLM", "Ministral3ForSequenceClassification"),
    special="Queries scaled up by position beyond the original context; YaRN; optional sliding window.",
    variants={},
    tiny=(Tiny(config=_TINY), Tiny(config={**_TINY, "sliding_window": None}, name="full")),
)
