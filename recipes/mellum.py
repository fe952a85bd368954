# SPDX-License-Identifier: Apache-2.0
"""Mellum 2, `transformers.models.mellum`.

Unusual: Qwen3-MoE with sliding and full layers, each kind with its RoPE parameters, and optional dense layers. Layers
for predicting several tokens at once are not used.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .olmo3 import RECIPE as OLMO3
from .qwen3 import RECIPE as QWEN3
from .qwen3_moe import RECIPE as QWEN3_MOE

_SHARED_FIELDS = ("layer_types", "rope_parameters", "sliding_window")
_TINY = {
    key: value for key, value in QWEN3_MOE.tiny[0].config.items() if key != "use_sliding_window"
}

RECIPE = replace(
    QWEN3,
    model_type="mellum",
    architectures=("MellumForCausalLM",),
    special="Experts; sliding and full layers, each with its RoPE; RMS norms per head on queries and keys.",
    transforms=(*QWEN3.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **{key: value for key, value in _TINY.items() if key != "mlp_only_layers"},
                **{key: OLMO3.tiny[0].config[key] for key in _SHARED_FIELDS},
                "mlp_layer_types": ["dense", "sparse"] * 2,
            }
        ),
    ),
)
