# SPDX-License-Identifier: Apache-2.0
"""LFM3, `transformers.models.lfm3`: LFM2 with sliding and gated attention, and norms around every block."""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, rms_norm, window_cache

from .lfm2 import RECIPE as LFM2
from .llama import RECIPE as LLAMA

_SLIDING = {"rope_type": "default", "rope_theta": 100.0}
_FULL = {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}


def _norms(config: Any) -> int:
    attention = config.num_hidden_layers - config.layer_types.count("conv")
    return int(
        (4 if config.use_sandwich_norm else 2) * config.num_hidden_layers + 1 + 2 * attention
    )


RECIPE = replace(
    LFM2,
    model_type="lfm3",
    architectures=("Lfm3ForCausalLM",),
    special="Gated short convolutions, sliding and full gated attention; full layers rotate half of each head.",
    transforms=(
        rms_norm(_norms),
        window_cache(),
    ),
    tiny=(
        Tiny(
            config=dict(LLAMA.tiny[0].config)
            | {"num_hidden_layers": 6, "pad_token_id": 0, "sliding_window": 7, "conv_L_cache": 4}
            | {"layer_types": ["conv", "sliding_attention", "full_attention"] * 2, "norm_eps": 1e-2}
            | {"rope_parameters": {"sliding_attention": _SLIDING, "full_attention": _FULL}}
        ),
    ),
)
