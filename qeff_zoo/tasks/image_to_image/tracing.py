# SPDX-License-Identifier: Apache-2.0
"""One call of a model of images whose sides are multiples of a window, for tracing."""

from typing import Any

import torch
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.images.image_tracing import Head

_OUTPUT = "reconstruction"
_BATCH = 2  # example size: at least 2, or torch.export specializes


def describe(model: Any, *, height: int, width: int) -> Tracing:
    """Describe how to trace a model: example inputs, names and symbols.

    Args:
        model: Hugging Face model, whose padding is left out.
        height: Height of the example in pixels, a multiple of the model's window.
        width: Width of the example in pixels, a multiple of the model's window.
    """
    window = model.config.window_size
    rows, columns = Dim("rows", min=2), Dim("columns", min=2)
    axes = {0: Dim("batch_size", min=2), 2: window * rows, 3: window * columns}
    return Tracing(
        module=Head(model, _OUTPUT).eval(),
        inputs={"pixel_values": torch.zeros(_BATCH, 3, height, width)},
        dynamic_shapes={"pixel_values": axes},
        input_names=["pixel_values"],
        output_names=[_OUTPUT],
        then=_name_axes,
        checked_later=True,
    )


def _name_axes(graph: Any) -> None:
    """Name the axes of images and of results, whose sizes are expressions of numbers of windows."""
    for values, names in (
        (graph.graph.inputs, ("height", "width")),
        (graph.graph.outputs, ("rows", "columns")),
    ):
        for value in values:
            value.shape = type(value.shape)(("batch_size", 3, *names))
