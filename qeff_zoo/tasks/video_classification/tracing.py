# SPDX-License-Identifier: Apache-2.0
"""One call of a video classification model, for tracing; see `task` for inputs and outputs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.tasks.images.whole_images import USUAL

_BATCH = 2  # example size: at least 2, or torch.export specializes
#: Fields of configurations that have the number of frames.
_FRAMES = ("num_frames", "frames_per_clip")


class ClassifyVideos(nn.Module):
    """One call of a model with a classification head.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return logits of each video."""
        logits: Tensor = self.model(**{self.model.main_input_name: pixel_values}).logits
        return logits


def run_once(model: Any) -> None:
    """Run the model without any computation."""
    config = model.config
    size: Any = getattr(config, "image_size", None) or getattr(config, "crop_size", USUAL)
    _run(model, *((size, size) if isinstance(size, int) else size))


def _run(model: Any, height: int, width: int) -> Tensor:
    config = model.config.to_dict()
    frames = next(config[name] for name in _FRAMES if config.get(name))
    pixels = torch.zeros(_BATCH, frames, 3, height, width)
    with uncomputed():
        rows = len(model(**{model.main_input_name: pixels}).logits)
    if rows != _BATCH:  # TimeSformer, with `attention_type` "space_only"
        raise ExportError(
            f"{type(model).__name__} returns {rows} answers for {_BATCH} videos; expected one for each. Choose a "
            "checkpoint with another `attention_type`."
        )
    return pixels


def describe(model: Any, *, height: int, width: int) -> Tracing:
    """Describe how to trace a model: wrapped module, example inputs, names and symbols.

    Args:
        model: Hugging Face model.
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.

    Raises:
        ExportError: The model takes no frames of that size.
    """
    try:
        pixels = _run(model, height, width)
    except (ValueError, RuntimeError) as error:
        raise ExportError(
            f"{type(model).__name__} takes no frames of {width} x {height} pixels, which its processor makes: "
            f"{str(error).splitlines()[0]} Expected a processor that belongs to the model; correct "
            "preprocessor_config.json."
        ) from error
    return Tracing(
        module=ClassifyVideos(model).eval(),
        inputs={"pixel_values": pixels},
        dynamic_shapes={"pixel_values": {0: Dim("batch_size", min=2)}},
        input_names=["pixel_values"],
        output_names=["logits"],
    )
