# SPDX-License-Identifier: Apache-2.0
"""LFM2, `transformers.models.lfm2`: gated short convolutions, and attention in a few layers."""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"}


def _norms(config: Any) -> int:
    return int(2 * config.num_hidden_layers + 1 + 2 * config.layer_types.count("full_attention"))


RECIPE = replace(
    LLAMA,
    model_type="lfm2",
    architectures=("Lfm2ForCausalLM",),
    special="Gated short convolutions whose state is a few columns; attention in a few layers, normalized per head.",
    transforms=(rms_norm(_norms),),
    tiny=(
        Tiny(
            config={
                **_TINY,
                "num_hidden_layers": 5,
                "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
                "conv_L_cache": 4,
                "block_multiple_of": 8,
                "norm_eps": 1e-2,
            }
        ),
    ),
)
