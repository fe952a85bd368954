# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 21B and 300B, `transformers.models.ernie4_5_moe`.

Unusual: experts are chosen by softmax scores plus a stored bias and weighted by the scores without it; shared experts
beside them; the first layers are dense. RoPE rotates interleaved pairs.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .ernie4_5 import RECIPE as ERNIE4_5

# Its head_dim is always hidden / heads.
_TINY = {key: value for key, value in ERNIE4_5.tiny[0].config.items() if key != "head_dim"} | {
    "moe_intermediate_size": 48,
    "moe_num_experts": 5,
    "moe_k": 2,
    "moe_layer_start_index": 2,
    "moe_layer_end_index": -1,
}

RECIPE = replace(
    ERNIE4_5,
    model_type="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    special="ERNIE 4.5 with dense layers, then experts chosen by biased scores, and shared experts.",
    transforms=(
        *ERNIE4_5.transforms,
        experts(),
    ),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | {"moe_num_shared_experts": 0}, name="unshared")),
)
