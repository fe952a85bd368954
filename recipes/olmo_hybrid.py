# SPDX-License-Identifier: Apache-2.0
"""OLMo Hybrid 7B, `transformers.models.olmo_hybrid`: OLMo 3 with the gated delta rule in three layers of four."""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA
from .qwen3_5_text import RECIPE as QWEN3_5

_TINY = {key: value for key, value in QWEN3_5.tiny[0].config.items() if key != "head_dim"}
_NO_ROPE = {"rope_type": "default", "rope_theta": None}


def _norms(config: Any) -> int:
    return int(2 * config.num_hidden_layers + 1 + 2 * config.layer_types.count("full_attention"))


RECIPE = replace(
    QWEN3_5,
    model_type="olmo_hybrid",
    architectures=("OlmoHybridForCausalLM",),
    special="Gated delta rule with negative eigenvalues, norms before; attention without positions, norms after.",
    transforms=(rms_norm(_norms), QWEN3_5.transforms[1]),
    tiny=(
        Tiny(config={**_TINY, "pad_token_id": 0, "rope_parameters": _NO_ROPE}),
        Tiny(
            config={**LLAMA.tiny[0].config, **_TINY, "pad_token_id": 0},
            name="rope",
        ),
    ),
)
