# SPDX-License-Identifier: Apache-2.0
"""Persimmon 8B, `transformers.models.persimmon`.

Unusual: one fused query-key-value projection with the three interleaved per head, layer norms on queries and keys,
RoPE over half of each head, a squared ReLU without a gate.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .nemotron import RECIPE as NEMOTRON
from .phi import RECIPE as PHI

_TINY = {key: value for key, value in PHI.tiny[0].config.items() if key != "num_key_value_heads"}

RECIPE = replace(
    NEMOTRON,
    model_type="persimmon",
    architectures=("PersimmonForCausalLM", "PersimmonForSequenceClassification"),
    special="Fused query-key-value; layer norms on queries and keys; squared ReLU; partial RoPE.",
    tiny=(Tiny(config=_TINY),),
)
