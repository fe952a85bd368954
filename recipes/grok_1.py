# SPDX-License-Identifier: Apache-2.0
"""Grok-1 in the form of hpcai-tech/grok-1, `qeff_zoo.export.architectures.grok_1`: close to OLMoE.

Unusual: norms before and after each block, a soft-cap on attention scores, scaled embeddings and logits, and routing
probabilities that do not add up to one.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

_MULTIPLIERS = {
    "attn_output_multiplier": 0.3,
    "embedding_multiplier_scale": 3.5,
    "output_multiplier_scale": 0.6,
    "max_attn_value": 2.0,
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2}
_TINY = {**LLAMA.tiny[0].config, **_MULTIPLIERS, **_EXPERTS, "tie_word_embeddings": True}

RECIPE = replace(
    LLAMA,
    model_type="grok-1",
    architectures=("Grok1ModelForCausalLM",),
    special="Norms around each block; a soft-cap on scores; scaled embeddings and logits; experts with GELU.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1), experts()),
    tiny=(Tiny(config={name: value for name, value in _TINY.items() if name != "head_dim"}),),
)
