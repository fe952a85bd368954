# SPDX-License-Identifier: Apache-2.0
"""GLM-GA, `transformers.models.glmga`: GLM-4.6V, whose processors take images and videos of other sizes."""

from dataclasses import replace

from .glm4v import IMAGES
from .glm46v import RECIPE as GLM46V

RECIPE = replace(
    GLM46V,
    model_type="glmga",
    special="GLM-4.6V, with other frames of videos.",
    images=replace(IMAGES, video_processor="GlmgaVideoProcessor"),
)
