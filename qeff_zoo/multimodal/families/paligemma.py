# SPDX-License-Identifier: Apache-2.0
"""PaliGemma: all tokens of a prompt attend to one another."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class PaliGemma(Images):
    """Images of one size before a text, which are in one prefill call."""

    types: str = "token_type_ids"

    whole: ClassVar[str] = "prompt"
    text: ClassVar[str] = "<bos>{}\n"
