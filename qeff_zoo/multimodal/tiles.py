# SPDX-License-Identifier: Apache-2.0
"""Tiles of an image of one size each, which the prompt layout of a family orders."""

from dataclasses import dataclass

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class Tiles(Images):
    """Tiles of one size, encoded one by one; a family has their order in the features and in the prompt."""

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True
