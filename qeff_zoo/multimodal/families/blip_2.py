# SPDX-License-Identifier: Apache-2.0
"""BLIP-2: `generate` is the language model's, whose end token ends generation."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class Blip2(Images):
    """Images of one size before a text."""

    marker: str = "<image>"
    text: str = "</s>{}"

    ends: ClassVar[str] = "text_config.eos_token_id"
