# SPDX-License-Identifier: Apache-2.0
"""GLM 4.7 Flash, `transformers.models.glm4_moe_lite`: latent attention and experts as in DeepSeek V3."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .deepseek_v3 import RECIPE as DEEPSEEK_V3

_REMOVED_FIELDS = ("first_k_dense_replace", "head_dim")
_TINY = {
    key: value for key, value in DEEPSEEK_V3.tiny[0].config.items() if key not in _REMOVED_FIELDS
} | {
    "mlp_layer_types": ["dense", "sparse"] * 2,
    "pad_token_id": 0,
}

RECIPE = replace(
    DEEPSEEK_V3,
    model_type="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    special="Latent attention (MLA), whose cache holds latents; mlp_layer_types says which layers have experts.",
    transforms=(
        DEEPSEEK_V3.transforms[0],
        experts(),
    ),
    tiny=(Tiny(config=_TINY),),
)
