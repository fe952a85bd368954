# SPDX-License-Identifier: Apache-2.0
"""LLaVA-OneVision: an image is tiled only if it is the prompt's only image."""

from dataclasses import dataclass

from qeff_zoo.multimodal.families.llava_next import LlavaNext


@dataclass(frozen=True, kw_only=True)
class LlavaOneVision(LlavaNext):
    """Tiles of a single image, or several images without tiles."""

    def is_uncut(self, images: int) -> bool:
        """See `Images`."""
        return images > 1
