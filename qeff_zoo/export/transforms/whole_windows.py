# SPDX-License-Identifier: Apache-2.0
"""Windows without padding (Swin2SR), for images whose sides are multiples of a window."""

from typing import Any

from torch import Tensor

from .modules import give, of_class


def apply(model: Any) -> int:
    """Let a model and its layers leave out padding, whose size depends on the image's.

    Args:
        model: Hugging Face model, changed in place.

    Returns:
        Number of changed modules.
    """
    models, layers = of_class(model, "Swin2SRModel"), of_class(model, "Swin2SRLayer")
    for module in models:
        give(module, _normalized, "pad_and_normalize")
    for module in layers:
        give(module, _unpadded, "maybe_pad")
    return len(models) + len(layers)


def _normalized(self: Any, pixel_values: Tensor) -> Tensor:
    colors: Tensor = (pixel_values - self.mean.to(pixel_values.dtype)) * self.img_range
    return colors


def _unpadded(
    self: Any, hidden_states: Tensor, height: int, width: int
) -> tuple[Tensor, tuple[int, ...]]:
    return hidden_states, (0,) * 6
