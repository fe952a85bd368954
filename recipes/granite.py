# SPDX-License-Identifier: Apache-2.0
"""Granite 3 and 4 dense models of IBM, `transformers.models.granite`.

Unusual: four multipliers, on embeddings, attention scores, residuals and logits (the last one divides).
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

# Granite's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"} | {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.5,
    "rms_norm_eps": 1e-2,
}

RECIPE = replace(
    LLAMA,
    model_type="granite",
    architectures=("GraniteForCausalLM",),
    special="Llama with multipliers on embeddings, attention scores and residuals, and a divisor of the logits.",
    tiny=(
        Tiny(config=_TINY | {"tie_word_embeddings": True}),
        Tiny(config=_TINY | {"attention_bias": True, "mlp_bias": True}, name="biased"),
    ),
)
