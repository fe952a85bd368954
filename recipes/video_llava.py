# SPDX-License-Identifier: Apache-2.0
"""Video-LLaVA, `transformers.models.video_llava`: LLaVA with one vision encoder for images and one for videos."""

from dataclasses import replace

from qeff_zoo.multimodal.frame_program import FrameProgram
from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="video_llava",
    architectures=("VideoLlavaForConditionalGeneration",),
    special="LLaVA's images; another vision encoder reads frames of videos, by a program of its own.",
    images=FrameProgram(video="video_token_id", video_processor="VideoLlavaVideoProcessor"),
    tiny=(Tiny(config={**LLAVA.tiny[0].config, "video_token_index": 201}),),
)
