# SPDX-License-Identifier: Apache-2.0
"""GLM-4.5V, `transformers.models.glm4v_moe`: GLM-4.1V's images, and GLM 4.5."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from ._tiny_parts import MULTIMODAL_ROPE
from .glm4_moe import RECIPE as GLM4_MOE
from .glm4v import RECIPE as GLM4V

_TEXT_CONFIG = {
    **GLM4_MOE.tiny[0].config,
    "rope_parameters": {**MULTIMODAL_ROPE, "mrope_section": [2, 2, 2]},
    "bos_token_id": 1,
    "eos_token_id": 2,
}

RECIPE = replace(
    GLM4V,
    model_type="glm4v_moe",
    architectures=("Glm4vMoeForConditionalGeneration",),
    special="GLM-4.1V's images; dense layers, then experts in groups with biased sigmoid scores, and a shared one.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1), GLM4_MOE.transforms[1]),
    tiny=(Tiny(config={**GLM4V.tiny[0].config, "text_config": _TEXT_CONFIG}),),
)
