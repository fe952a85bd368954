# SPDX-License-Identifier: Apache-2.0
"""Step 3.7 Flash, `transformers.models.step3p7`: parts of an image in another size, and experts with clamped gates."""

from dataclasses import replace

from qeff_zoo.multimodal.families.step3p7 import Step3p7
from qeff_zoo.recipe import Tiny, Transform, rms_norm, sparse_layers, window_cache

from ._tiny_parts import ENCODER_SIZES
from .llava import RECIPE as LLAVA
from .mellum import RECIPE as MELLUM

_TEXT_CONFIG = {
    key: value for key, value in MELLUM.tiny[0].config.items() if key != "rope_parameters"
}
_ROPE = {"rope_theta": [100.0, 1000.0] * 2, "partial_rotary_factors": [1.0, 0.5] * 2}
_MOE = {"n_routed_experts": 6, "share_expert_dim": 40, "moe_router_scaling_factor": 1.7}
_MLP_TYPES = {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2, "num_sliding_attention_heads": 8}
_GATES = {"swiglu_limits": [0.0, 0.0, 0.0, 0.5], "swiglu_limits_shared": [0.0, 0.5, 0.0, 0.5]}
_IMAGE_PROCESSOR = {"image_processor_type": "Step3p7ImageProcessor", "size": 32, "patch_size": 16}

RECIPE = replace(
    LLAVA,
    model_type="step3p7",
    architectures=("Step3p7ForConditionalGeneration",),
    special="Parts of an image in another size; number of query heads by layer; gated attention, and clamped experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1, offset=1.0),
        Transform(name="plain_experts", count=sparse_layers, parameters={"name": "Step3p7Experts"}),
        window_cache(),
    ),
    images=Step3p7(),
    tiny=(
        Tiny(
            config={
                "text_config": {**_TEXT_CONFIG, **_ROPE, **_MOE, **_MLP_TYPES, **_GATES},
                "vision_config": {**ENCODER_SIZES, "image_size": 32, "patch_size": 4},
                "image_token_id": 200,
            },
            image_processor={**_IMAGE_PROCESSOR, "max_image_size": 96},
        ),
    ),
)
