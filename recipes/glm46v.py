# SPDX-License-Identifier: Apache-2.0
"""GLM-4.6V, `transformers.models.glm46v`: GLM-4.1V's vision encoder, and the text of that or of GLM-4.5V."""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, experts, rms_norm, sparse_layers

from .glm4v import IMAGES
from .glm4v import RECIPE as GLM4V
from .glm4v_moe import RECIPE as GLM4V_MOE

_MOE_TEXT_TYPE = "glm4v_moe_text"
_MOE_CONFIG = {
    **GLM4V.tiny[0].config,
    "text_config": {**GLM4V_MOE.tiny[0].config["text_config"], "model_type": _MOE_TEXT_TYPE},
}


def _sparse_layers(config: Any) -> int:
    return sparse_layers(config) if config.model_type == _MOE_TEXT_TYPE else 0


def _norms(config: Any) -> int:
    return int((2 if config.model_type == _MOE_TEXT_TYPE else 4) * config.num_hidden_layers + 1)


RECIPE = replace(
    GLM4V,
    model_type="glm46v",
    architectures=("Glm46VForConditionalGeneration",),
    special="GLM-4.1V's images; its language model, or GLM-4.5V's with experts.",
    images=replace(IMAGES, video_processor="Glm46VVideoProcessor"),
    transforms=(rms_norm(_norms), experts(_sparse_layers)),
    tiny=(*GLM4V.tiny, Tiny(config=_MOE_CONFIG, name="experts")),
)
