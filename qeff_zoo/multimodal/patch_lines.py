# SPDX-License-Identifier: Apache-2.0
"""Patches of images of any size in row-major order, with a channel axis."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid


@dataclass(frozen=True, kw_only=True)
class PatchLines(PatchGrid):
    """Patches (channels, rows, columns) in row-major order."""

    lines: ClassVar[bool] = True
    planes: ClassVar[bool] = True
