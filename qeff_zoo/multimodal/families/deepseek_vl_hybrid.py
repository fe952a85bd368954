# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-VL hybrid: a second vision encoder encodes each image in a higher resolution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.runtime.program import Array

_FINE = "high_res"
_PIXELS = f"{_FINE}_pixel_values"


@dataclass(frozen=True, kw_only=True)
class DeepSeekVlHybrid(Images):
    """Images in two resolutions, both of which the program takes."""

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        config = getattr(model.config, f"{_FINE}_vision_config")
        more = {_PIXELS: vision_tracing.image_of(config, config.image_size)}
        return vision_tracing.tracing(model, self, side=side, more=more)

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """See `Images`."""
        (fine,) = more
        return {self.pixels: pixels, _PIXELS: fine}

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        inputs = super().sample(vision, size, random)
        shape = vision.program.inputs[_PIXELS].shape
        return {**inputs, _PIXELS: random.standard_normal(shape, np.float32)}
