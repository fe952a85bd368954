# SPDX-License-Identifier: Apache-2.0
"""GLM-4.6V Flash, `transformers.models.glm46v`: GLM-4.1V under a name of its own."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .glm4v import RECIPE as GLM4V
from .glm4v import VISION

RECIPE = replace(
    GLM4V,
    model_type="glm46v",
    architectures=("Glm46VForConditionalGeneration",),
    special="GLM-4.1V under a name of its own, whose parts name their types.",
    tiny=(
        Tiny(
            config={
                **GLM4V.tiny[0].config,
                "text_config": {**GLM4V.tiny[0].config["text_config"], "model_type": "glm4v_text"},
                "vision_config": {**VISION, "model_type": "glm4v_vision"},
            }
        ),
    ),
)
