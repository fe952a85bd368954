# SPDX-License-Identifier: Apache-2.0
"""Images of any size, whose patches the program takes as one column of merged squares; the forward takes pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class ImageColumn(PatchGrid):
    """Images of any size, passed to the forward as one column of merged squares, as Pixtral's encoder allows."""

    planes: ClassVar[bool] = True

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """See `PatchGrid`."""
        from qeff_zoo.multimodal.tracing.vision_tracing import Column

        return Column(model, self, geometry.merge)

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """See `Images`."""
        return {self.pixels: pixels, "image_sizes": [tuple(pixels.shape[2:])]}

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`; the processor's padding is removed."""
        import numpy as np

        geometry = vision.geometry
        height, width = (int(side) for side in prepared["image_sizes"].reshape(2))
        patch = int(vision.program.inputs[self.pixels].shape[2])
        high, wide = height // patch, width // patch
        pixels = np.asarray(prepared[self.pixels], np.float32)
        patches = geometry.cut(pixels.reshape(-1, *pixels.shape[-2:])[:, :height, :width], patch)
        outputs = vision.run(geometry.in_column(patches, high, wide))
        rows = (high // geometry.merge) * (wide // geometry.merge)
        return vision.joined(
            digest, [{name: output[:rows] for name, output in outputs.items()}], prepared
        )

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True
