# SPDX-License-Identifier: Apache-2.0
"""K-EXAONE, `transformers.models.exaone_moe`.

Unusual: windows and layers without positions as in EXAONE 4, but norms before each block; dense layers first, then
experts chosen in groups by sigmoid scores plus a stored bias, with a shared one beside them.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .exaone4 import RECIPE as EXAONE4

_MOE = {"moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}
_ROUTING = {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7}
_TINY = {
    **EXAONE4.tiny[0].config,
    **_MOE,
    **_ROUTING,
    "num_hidden_layers": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
    "mlp_layer_types": ["dense"] * 4 + ["sparse"] * 4,
}


RECIPE = replace(
    EXAONE4,
    model_type="exaone_moe",
    architectures=("ExaoneMoeForCausalLM",),
    special="Sliding layers with RoPE, full ones without; dense layers, then experts with biased sigmoid scores.",
    transforms=(
        *EXAONE4.transforms,
        experts(),
    ),
    tiny=(Tiny(config=_TINY),),
)
