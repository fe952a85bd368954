# SPDX-License-Identifier: Apache-2.0
"""Perception LM: tiles whose features replace embeddings before the forward."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class PerceptionLm(Images):
    """Tiles of one size."""

    nested: ClassVar[bool] = True
    embedded: ClassVar[bool] = True

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False
