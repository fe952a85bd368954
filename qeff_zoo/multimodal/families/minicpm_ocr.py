# SPDX-License-Identifier: Apache-2.0
"""MiniCPM-OCR: MiniCPM-V whose vision encoder merges squares of patches only if the config sets it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.families.minicpm import MiniCpm

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class MiniCpmOcr(MiniCpm):
    """Tiles of any size, in four times as many rows as those of MiniCPM-V where a config has no `downsample_mode`."""

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """As of `MiniCpm`."""
        return super().geometry(_complete(config))

    @property
    def prompt_layout(self) -> "Layout":
        """As of `MiniCpm`."""
        layout = super().prompt_layout

        def grid(count: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
            return layout.grid(count, prepared, _complete(config))

        return replace(layout, grid=grid)


def _complete(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"downsample_mode": "4x", **config}
