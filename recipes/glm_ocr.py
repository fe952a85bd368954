# SPDX-License-Identifier: Apache-2.0
"""GLM-OCR, `transformers.models.glm_ocr`: GLM-4.1V without learned positions, with norms of queries and keys."""

from dataclasses import replace

from qeff_zoo.recipe import Images, Tiny

from .glm4v import RECIPE as GLM4V

RECIPE = replace(
    GLM4V,
    model_type="glm_ocr",
    architectures=("GlmOcrForConditionalGeneration",),
    special="GLM-4.1V without learned positions; vision layers norm queries and keys.",
    images=Images(patches=True, axes=3, types="mm_token_type_ids"),
    tiny=(Tiny(config={**GLM4V.tiny[0].config}),),
)
