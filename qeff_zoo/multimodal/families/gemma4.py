# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: the processor returns the column and row of each patch, and may merge patches itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Gemma4(PatchGrid):
    """Patches with positions of the processor, padded.

    Args:
        merged: Whether the processor merges patches, so that each returned patch becomes an image token.
    """

    types: str = "mm_token_type_ids"
    whole: str = "image"
    before: tuple[int | str, ...] = ("boi_token_id",)
    after: tuple[int | str, ...] = ("eoi_token_id",)
    merged: bool = False

    positions: ClassVar[str] = "image_position_ids"

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """See `PatchGrid`."""
        from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry, merge_of

        merge = merge_of({**config, **config["vision_config"]})
        return PatchGeometry.read(config, self, 1 if self.merged else merge, row=merge)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`."""
        import numpy as np

        from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

        geometry = vision.geometry
        pixels = np.asarray(prepared[self.pixels], np.float32)
        inputs = geometry.unpadded({**prepared, self.pixels: pixels})
        width, height = (int(one) + 1 for one in inputs["position_ids"].max(0))
        grid = 1, height // geometry.merge, width // geometry.merge
        return Encoded(digest=digest, features=vision.run(inputs), grid=grid)

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        inputs = super().sample(vision, size, random)
        height, width = (side * vision.geometry.merge for side in size)
        rows, columns = np.indices((height, width)).reshape(2, -1)
        positions = np.stack([columns, rows], 1)[None]
        return {**inputs, self.positions: positions, self.pixels: inputs[self.pixels][None]}
