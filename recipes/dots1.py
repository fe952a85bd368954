# SPDX-License-Identifier: Apache-2.0
"""dots.llm1 of rednote, `transformers.models.dots1`.

Unusual: norms on queries and keys, a window in the upper layers if the config names one; dense layers first, then
experts chosen by sigmoid scores plus a stored bias, with shared ones beside them.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

_MOE = {"moe_intermediate_size": 48, "n_routed_experts": 6, "num_experts_per_tok": 2}
_ROUTING = {"n_group": 2, "topk_group": 1, "n_shared_experts": 2, "routed_scaling_factor": 1.7}
_TINY = {
    **LLAMA.tiny[0].config,
    **_MOE,
    **_ROUTING,
    "num_hidden_layers": 8,
    "layer_types": ["full_attention", "sliding_attention"] * 4,
    "sliding_window": 7,
    "first_k_dense_replace": 4,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-2,
}


RECIPE = replace(
    LLAMA,
    model_type="dots1",
    architectures=("Dots1ForCausalLM",),
    special="Norms on queries and keys; dense layers, then experts with biased sigmoid scores and shared ones.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(Tiny(config=_TINY),),
)
