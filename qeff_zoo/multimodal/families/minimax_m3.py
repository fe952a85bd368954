# SPDX-License-Identifier: Apache-2.0
"""MiniMax M3: positions of patches include the frame, besides row and column."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid


@dataclass(frozen=True, kw_only=True)
class MiniMaxM3(PatchGrid):
    """Patches with frame, row and column."""

    frames: ClassVar[bool] = True
