# SPDX-License-Identifier: Apache-2.0
"""InternVL 2.5, 3 and 3.5 in OpenGVLab's own form, `qeff_zoo.export.architectures.internvl_chat`."""

from dataclasses import replace

from qeff_zoo.multimodal import own_forms
from qeff_zoo.multimodal.families.internvl_chat import InternVLChat

from .internvl import RECIPE as INTERNVL

RECIPE = replace(
    INTERNVL,
    model_type="internvl_chat",
    architectures=("InternVLChatModel",),
    special="Plain InternVL under other names.",
    alias=own_forms.internvl_chat,
    images=InternVLChat(before=("<img>",), after=("</img>",)),
)
