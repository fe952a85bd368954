# SPDX-License-Identifier: Apache-2.0
"""The text model of dense Qwen3.5, `transformers.models.qwen3_5`.

Unusual: three layers of the gated delta rule to one of gated attention, in which a quarter of each head is rotated.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, layers_of, recurrence, rms_norm

from .llama import RECIPE as LLAMA

_LINEAR, _FULL = "linear_attention", "full_attention"
_ROPE = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}


def _norms(config: Any) -> int:
    return int(2 * config.num_hidden_layers + 1 + 2 * config.layer_types.count(_FULL))


RECIPE = replace(
    LLAMA,
    model_type="qwen3_5_text",
    architectures=("Qwen3_5ForCausalLM",),
    special="Gated delta rule and gated attention in turn; queries and keys are normalized per head; partial RoPE.",
    transforms=(
        rms_norm(_norms, offset=1.0),
        recurrence(layers_of(_LINEAR)),
    ),
    tiny=(
        Tiny(
            config=dict(LLAMA.tiny[0].config)
            | {"num_hidden_layers": 5, "layer_types": [_LINEAR, _FULL, _LINEAR, _LINEAR, _FULL]}
            | {"rope_parameters": _ROPE, "rms_norm_eps": 1e-2, "linear_conv_kernel_dim": 3}
            | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            | {"linear_key_head_dim": 12, "linear_value_head_dim": 20}
        ),
    ),
)
