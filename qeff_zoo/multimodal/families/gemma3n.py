# SPDX-License-Identifier: Apache-2.0
"""Gemma 3n: empty lines around each image in a prompt."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class Gemma3n(Images):
    """Images of one size between empty lines."""

    before: tuple[int | str, ...] = ("boi_token_id",)
    after: tuple[int | str, ...] = ("eoi_token_id",)

    spaced: ClassVar[str] = "\n\n{}\n\n"
