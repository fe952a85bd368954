# SPDX-License-Identifier: Apache-2.0
"""Images of any height and width in whole patches, which the forward takes directly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class SizedImages(Images):
    """Images or tiles of any height and width in whole patches."""

    any_size: ClassVar[bool] = True

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        return vision_tracing.of_any_size(model, self, side)

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """See `Images`."""
        arguments = {self.pixels: pixels[None] if self.nested else pixels}
        return arguments if self.mask else {**arguments, "image_sizes": [tuple(pixels.shape[2:])]}

    def cropped(self, tile: "Array", height: int, width: int, config: Mapping[str, Any]) -> "Array":
        """See `Images`; partial patches are removed, too, as in the vision encoder."""
        unit = _unit(config)
        return tile[:, : height // unit * unit, : width // unit * unit]

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: sizes with a partial patch."""
        import numpy as np

        config = vision.config["vision_config"]
        patch, most = int(config["patch_size"]), int(config["image_size"])
        height, width = (min((side + 1) * patch + 1, most) for side in size)
        channels = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        shape = [*channels, *self.padded((height, width), most)]
        shape = [1, *shape] if self.nested else shape
        inputs: dict[str, Array] = {}
        if self.mask:
            mask = np.ones((*shape[:-3], *shape[-2:]), np.int64)
            mask[..., height:, :] = mask[..., width:] = 0
            inputs[self.mask] = mask
        inputs[self.pixels] = random.standard_normal(shape, np.float32)
        return inputs

    def padded(self, size: tuple[int, int], most: int) -> tuple[int, int]:
        """Return height and width after the processor's padding.

        Args:
            size: Height and width of an image.
            most: Pixels on a side of the largest image.
        """
        return size


def _unit(config: Mapping[str, Any]) -> int:
    """Return the pixels on a side of the square that becomes an image token."""
    return int(config["vision_config"]["patch_size"]) * int(config.get("spatial_merge_size", 1))
