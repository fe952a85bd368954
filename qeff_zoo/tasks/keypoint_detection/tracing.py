# SPDX-License-Identifier: Apache-2.0
"""One call of a pose model, for tracing."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.uncomputed import uncomputed

_BATCH = 2  # example size: at least 2, or torch.export specializes


class Estimate(nn.Module):
    """One call of a pose model.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, dataset_index: Tensor | None = None) -> Tensor:
        """Return the heat maps of every image; `dataset_index` selects the experts of each."""
        heatmaps: Tensor = self.model(
            pixel_values=pixel_values, dataset_index=dataset_index
        ).heatmaps
        return heatmaps


def _inputs(model: Any, height: int, width: int) -> dict[str, Tensor]:
    inputs = {"pixel_values": torch.zeros(_BATCH, 3, height, width)}
    if model.config.backbone_config.num_experts > 1:
        inputs["dataset_index"] = torch.zeros(_BATCH, dtype=torch.int64)
    return inputs


def run_once(model: Any) -> None:
    """Run the model without any computation."""
    with uncomputed():
        model(**_inputs(model, *model.config.backbone_config.image_size))


def describe(model: Any, *, height: int, width: int) -> Tracing:
    """Describe how to trace a model: example inputs, names and symbols.

    Args:
        model: Hugging Face model.
        height: Height of processed images in pixels.
        width: Width of processed images in pixels.

    Raises:
        ExportError: The model takes no images of that size.
    """
    size = tuple(model.config.backbone_config.image_size)
    if size != (height, width):
        raise ExportError(
            f"{type(model).__name__} takes images of {size[1]} x {size[0]} pixels, and its processor makes {width} x "
            f"{height}. Expected a processor that belongs to the model; correct `size` in preprocessor_config.json."
        )
    inputs, batch = _inputs(model, height, width), Dim("batch_size", min=2)
    return Tracing(
        module=Estimate(model).eval(),
        inputs=inputs,
        dynamic_shapes={name: {0: batch} for name in inputs},
        input_names=[*inputs],
        output_names=["heatmaps"],
    )
