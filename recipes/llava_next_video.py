# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT-Video, `transformers.models.llava_next_video`: LLaVA-NeXT, whose frames of videos are pooled."""

from dataclasses import replace

from qeff_zoo.multimodal.families.llava_next_video import LlavaNextVideo
from qeff_zoo.recipe import Tiny

from .llava_next import RECIPE as LLAVA_NEXT

RECIPE = replace(
    LLAVA_NEXT,
    model_type="llava_next_video",
    architectures=("LlavaNextVideoForConditionalGeneration",),
    special="LLaVA-NeXT's images; features of frames of videos are pooled, by a program of their own.",
    images=LlavaNextVideo(),
    tiny=(
        Tiny(
            config={
                **LLAVA_NEXT.tiny[0].config,
                "image_token_index": 200,
                "video_token_index": 201,
            },
            image_processor=LLAVA_NEXT.tiny[0].image_processor,
        ),
    ),
)
