# SPDX-License-Identifier: Apache-2.0
"""MiMo-V2-Flash, `transformers.models.mimo_v2_flash`.

Unusual: sliding layers have twice the KV heads and an attention sink for each head; values are narrower than keys and
scaled; a third of each head is rotated; experts chosen by biased sigmoid scores within groups. Dense layers come first.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA
from .mellum import RECIPE as MELLUM
from .solar_open import RECIPE as SOLAR_OPEN

_SHARED_FIELDS = ("sliding_window", "layer_types", "mlp_layer_types")
_ROPE = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.334}
_FULL_ROPE = {**_ROPE, "rope_theta": 1000.0}

RECIPE = replace(
    MELLUM,
    model_type="mimo_v2_flash",
    architectures=("MiMoV2FlashForCausalLM",),
    special="Sliding layers with sinks and more KV heads; narrow scaled values; experts in groups by biased sigmoid.",
    transforms=(*LLAMA.transforms, MELLUM.transforms[-1]),
    fixed_kv_heads="its sliding layers have twice as many",
    tiny=(
        Tiny(
            config={
                **SOLAR_OPEN.tiny[0].config,
                **{key: MELLUM.tiny[0].config[key] for key in _SHARED_FIELDS},
                "num_key_value_heads": 1,
                "v_head_dim": 12,
                "attention_value_scale": 0.5,
                "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _FULL_ROPE},
            }
        ),
    ),
)
