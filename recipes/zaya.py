# SPDX-License-Identifier: Apache-2.0
"""ZAYA1, `transformers.models.zaya`: attention over convolved queries and keys, and a router that remembers layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, experts, rms_norm

from .llama import RECIPE as LLAMA

_FULL, _SLIDING = "hybrid", "hybrid_sliding"

RECIPE = replace(
    LLAMA,
    model_type="zaya",
    architectures=("ZayaForCausalLM",),
    special="Convolved queries and keys, half of each value from the token before; one expert or none per token.",
    transforms=(
        rms_norm(lambda config: 3 * config.num_hidden_layers + 1),
        experts(),
        Transform(name="compressed_convolution", count=lambda config: config.num_hidden_layers),
    ),
    fixed_kv_heads="its keys and queries pass a convolution together",
    tiny=(
        Tiny(
            config=dict(LLAMA.tiny[0].config)
            | {"num_hidden_layers": 5, "layer_types": [_FULL, _FULL, _SLIDING, _FULL, _SLIDING]}
            | {"sliding_window": 7, "num_experts": 5, "moe_intermediate_size": 48}
            | {"router_hidden_size": 24, "cca_time0": 3, "attention_bias": True}
            | {"rms_norm_eps": 1e-2, "tie_word_embeddings": False, "lm_head_bias": True}
            | {
                "rope_parameters": {
                    kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.5}
                    for kind, base in ((_FULL, 1000.0), (_SLIDING, 100.0))
                }
            }
        ),
    ),
)
