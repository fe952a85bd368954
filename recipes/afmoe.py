# SPDX-License-Identifier: Apache-2.0
"""Trinity of Arcee, `transformers.models.afmoe`.

Unusual: attention's output has a sigmoid gate; norms before and after each block and on queries and keys; only sliding
layers have RoPE; experts are chosen by sigmoid scores plus a stored bias; embeddings may be scaled by sqrt(hidden).
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

_MOE = {"moe_intermediate_size": 48, "num_experts": 5, "num_experts_per_tok": 2}
_TINY = {
    **LLAMA.tiny[0].config,
    **_MOE,
    "rms_norm_eps": 1e-2,
    "num_hidden_layers": 8,
    "num_dense_layers": 4,
    "global_attn_every_n_layers": 2,
    "sliding_window": 7,
    "route_scale": 1.7,
    "mup_enabled": True,
}


RECIPE = replace(
    LLAMA,
    model_type="afmoe",
    architectures=("AfmoeForCausalLM",),
    special="Gated attention; sliding layers with RoPE, full ones without; dense layers, then experts and shared ones.",
    transforms=(
        rms_norm(lambda config: 6 * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(Tiny(config=_TINY),),
)
