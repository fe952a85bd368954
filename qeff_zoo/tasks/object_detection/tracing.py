# SPDX-License-Identifier: Apache-2.0
"""One call of a detection model, for tracing."""

from typing import Any

from torch import Tensor, nn


class Detect(nn.Module):
    """One call of a detection model, whose images have no padding.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of labels and the boxes of every query."""
        output = self.model(pixel_values=pixel_values)
        return output.logits, output.pred_boxes
