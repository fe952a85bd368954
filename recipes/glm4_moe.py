# SPDX-License-Identifier: Apache-2.0
"""GLM 4.5 and 4.6, with Air, `transformers.models.glm4_moe`.

Unusual: experts are chosen by sigmoid scores plus a stored bias, within groups, and weighted by the scores without it;
a shared expert beside them; the first layers are dense; RoPE on half of each head; norms on queries and keys in 4.6.
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
    "first_k_dense_replace": 2,
    "rms_norm_eps": 1e-2,
    "attention_bias": True,
    "rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}


RECIPE = replace(
    LLAMA,
    model_type="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    special="Dense layers, then experts in groups with biased sigmoid scores; RoPE on half of each head.",
    transforms=(
        rms_norm(lambda config: (4 if config.use_qk_norm else 2) * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"use_qk_norm": True, "norm_topk_prob": False}, name="qk_norm"),
    ),
)
