# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT-Video: LLaVA-NeXT's images, and video frames in a separate program."""

from dataclasses import dataclass

from qeff_zoo.multimodal.families.llava_next import LlavaNext
from qeff_zoo.multimodal.frame_program import FrameProgram


@dataclass(frozen=True, kw_only=True)
class LlavaNextVideo(LlavaNext, FrameProgram):
    """Tiles whose features are joined to lines, and frames with half as many rows and columns."""

    video: str = "video_token_id"
    video_processor: str = "LlavaNextVideoVideoProcessor"
