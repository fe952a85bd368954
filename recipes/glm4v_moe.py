# SPDX-License-Identifier: Apache-2.0
"""GLM-4.5V, `transformers.models.glm4v_moe`: GLM-4.1V with experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .glm4_moe import RECIPE as GLM4_MOE
from .glm4v import RECIPE as GLM4V
from .glm4v import ROPE, TOKENS, VISION

RECIPE = replace(
    GLM4V,
    model_type="glm4v_moe",
    architectures=("Glm4vMoeForConditionalGeneration",),
    special="GLM-4.1V with experts, chosen by sigmoids and a correction of each.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1),
        *GLM4_MOE.transforms[1:],
    ),
    tiny=(
        Tiny(
            config={
                **TOKENS,
                "text_config": {
                    **GLM4_MOE.tiny[0].config,
                    "rope_parameters": {**ROPE, "mrope_section": [1, 2, 3]},
                },
                "vision_config": VISION,
            }
        ),
    ),
)
