# SPDX-License-Identifier: Apache-2.0
"""Patches of images of any size that the processor orders line by line, with an axis of channels."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid


@dataclass(frozen=True, kw_only=True)
class PatchLines(PatchGrid):
    """Patches (channels, rows, columns), line by line."""

    lines: ClassVar[bool] = True
    planes: ClassVar[bool] = True
