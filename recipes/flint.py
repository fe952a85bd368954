# SPDX-License-Identifier: Apache-2.0
"""Flint, `transformers.models.flint`.

Unusual: a learned sink in every head's softmax, norms on queries and keys, sliding and full layers; the first ones are
dense, then experts are chosen by sigmoid scores, beside a shared expert without a gate.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

_MOE = {"moe_intermediate_size": 48, "num_experts": 5, "num_experts_per_tok": 2}
_TINY = {
    **LLAMA.tiny[0].config,
    **_MOE,
    "shared_expert_intermediate_size": 40,
    "num_hidden_layers": 8,
    "mlp_only_layers": [0, 1, 2, 3],
    "layer_types": ["full_attention", "sliding_attention"] * 4,
    "sliding_window": 7,
    "rms_norm_eps": 1e-2,
}

RECIPE = replace(
    LLAMA,
    model_type="flint",
    architectures=("FlintForCausalLM",),
    special="Attention sinks; sliding and full layers; dense layers, then experts with sigmoid scores.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(Tiny(config=_TINY),),
)
