# SPDX-License-Identifier: Apache-2.0
"""SmolVLM, `transformers.models.smolvlm`: Idefics 3, small; frames of a video are pictures, behind their times."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from .idefics3 import RECIPE as IDEFICS3

#: What its processor writes of chats with videos, whatever template a checkpoint has.
_TEMPLATE = (
    "<|im_start|>{% for one in messages %}{{ one.role | capitalize }}:"
    "{% if one.content is string %} {{ one.content }}{% else %}"
    "{{ '' if one.content[0].type == 'image' else ' ' }}{% for part in one.content %}"
    "{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
_ALL = "You are provided the following series of {frames} frames from a {duration} [H:MM:SS] video.\n"  # fmt: skip

RECIPE = replace(
    IDEFICS3,
    model_type="smolvlm",
    architectures=("SmolVLMForConditionalGeneration",),
    special="Idefics 3, small; frames of a video are pictures.",
    images=Images(
        layout="named_tiles", nested=True, video="<video>", video_processor="SmolVLMVideoProcessor",
        stamp=("\nFrame from {clock}:", "", "", _ALL, "\n\n"), video_template=_TEMPLATE,
    ),
    tiny=(
        Tiny(
            config=IDEFICS3.tiny[0].config,
            image_processor={
                "image_processor_type": "SmolVLMImageProcessor",
                "size": {"longest_edge": 56},
                "max_image_size": {"longest_edge": 28},
            },
        ),
    ),
)  # fmt: skip
