# SPDX-License-Identifier: Apache-2.0
"""Images whose tiles have another size than the whole image: two vision programs, one for each size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class TwoSizes(Tiles):
    """The whole image in one size, and its tiles in another."""

    tiles: ClassVar[str] = "pixel_values_local"

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: the whole image, then its tiles one by one, if any."""
        import numpy as np

        tiles = np.asarray(prepared.get(self.tiles, ()), np.float32)
        outputs = [vision.run({self.pixels: np.asarray(prepared[self.pixels], np.float32)})]
        outputs += [
            vision.run({self.pixels: np.ascontiguousarray(tile[None])}, vision.tiles)
            for tile in tiles
        ]
        return vision.arranged(digest, outputs, prepared)
