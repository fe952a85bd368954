# SPDX-License-Identifier: Apache-2.0
"""Video-LLaVA, `transformers.models.video_llava`: LLaVA with one tower for pictures and one for videos."""

from dataclasses import replace

from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="video_llava",
    architectures=("VideoLlavaForConditionalGeneration",),
    special="LLaVA's pictures; the tower that reads videos is left out.",
)
