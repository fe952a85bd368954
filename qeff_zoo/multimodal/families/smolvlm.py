# SPDX-License-Identifier: Apache-2.0
"""SmolVLM: named tiles, and videos whose frames are images with a timestamp text each."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.families.idefics3 import Idefics3

_BEFORE = "You are provided the following series of {frames} frames from a {duration} [H:MM:SS] video.\n"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SmolVlm(Idefics3):
    """Tiles with names in the prompt, and video frames after their timestamps."""

    video: str = "<video>"
    video_processor: str = "SmolVLMVideoProcessor"
    stamp: tuple[str, ...] = ("\nFrame from {clock}:", "", "", _BEFORE, "\n\n")

    #: Chat template of the processor for videos, which overrides that of a checkpoint.
    video_template: ClassVar[str] = (
        "<|im_start|>{% for one in messages %}{{ one.role | capitalize }}:"
        "{% if one.content is string %} {{ one.content }}{% else %}"
        "{{ '' if one.content[0].type == 'image' else ' ' }}{% for part in one.content %}"
        "{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{% endfor %}{% endif %}"
        "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    )
