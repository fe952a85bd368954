# SPDX-License-Identifier: Apache-2.0
"""Common functions of image encoder tasks: run, tracing, specialization and validation.

IN   pixel_values (batch_size, 3, height, width) f32    the output of the checkpoint's processor, all of one size;
                                                       height and width are symbols if each image has its own
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Tracing, lazy, named
from qeff_zoo.errors import ExportError, ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

if TYPE_CHECKING:
    from pathlib import Path

    from qeff_zoo.checkpoint.opening import Checkpoint

_BATCH = 2  # example size: at least 2, or torch.export specializes
#: Default pixels of a side, if a config does not set it.
USUAL = 224


def run_once(model: Any) -> None:
    """Run the model without any computation."""
    config = getattr(model.config, "vision_config", model.config)
    of_timm = (getattr(config, "pretrained_cfg", None) or {}).get("input_size", ())[1:]
    size = getattr(config, "image_size", None) or of_timm or USUAL
    height, width = (size, size) if isinstance(size, int) else size
    _run(model, height, width)


def _run(model: Any, height: int, width: int) -> None:
    import torch

    from qeff_zoo.export.uncomputed import uncomputed

    call = getattr(model, "get_image_features", model)
    with uncomputed():
        call(pixel_values=torch.zeros(_BATCH, 3, height, width))


def describe(
    model: Any, module: Any, output: str, *, height: int, width: int, any_size: bool = False
) -> Tracing:
    """Describe how to trace a wrapped model: example inputs, names and symbols.

    Args:
        model: Hugging Face model.
        module: Module around the model; takes the inputs by name.
        output: Name of its output.
        height: Height of an image in pixels.
        width: Width of an image in pixels.
        any_size: Whether images have any size; height and width are then those of the example.

    Raises:
        ExportError: The model takes no images of that size.
    """
    import torch
    from torch.export import Dim

    try:
        _run(model, height, width)
    except (ValueError, RuntimeError) as error:
        raise ExportError(
            f"{type(model).__name__} takes no images of {width} x {height} pixels, which its processor makes: "
            f"{str(error).splitlines()[0]} Expected a processor that belongs to the model; correct "
            "preprocessor_config.json."
        ) from error
    axes = {0: Dim("batch_size", min=2)}
    if any_size:
        least = min(height, width) // 2  # convolutions and patches require one; graphs have none
        axes |= {2: Dim("height", min=least), 3: Dim("width", min=least)}
    return Tracing(
        module=module.eval(),
        inputs={"pixel_values": torch.zeros(_BATCH, 3, height, width)},
        dynamic_shapes={"pixel_values": axes},
        input_names=["pixel_values"],
        output_names=[output],
        then=_name_output_axes if any_size else None,
        checked_later=any_size,
    )


def _name_output_axes(graph: Any) -> None:
    """Name the axes of outputs whose sizes are expressions of those of images."""
    for output in graph.graph.outputs:
        names = ("batch_size", "rows", "columns")
        output.shape = type(output.shape)(names[: len(output.shape)])


def image_size(files: Mapping[str, "Path"], default: str) -> tuple[int, int]:
    """Return the height and width of every image in the output of a checkpoint's processor.

    Args:
        files: Small files of the checkpoint, by name.
        default: Processor class of transformers, if the files name none.

    Raises:
        CheckpointError: There is no processor, or the size depends on the image.
        UnsupportedModelError: The processor has an unsupported operation.
    """
    from qeff_zoo.errors import CheckpointError

    name, sizes = processed_shapes(files, default)
    (shape, *others) = sizes
    if others or len(shape) != 4:
        raise CheckpointError(
            f"The processor {name!r} makes arrays of the shapes {sorted(sizes)} of two images. Expected "
            "one shape for all. Set `crop_size`, or height and width as its `size`, in preprocessor_config.json."
        )
    return int(shape[2]), int(shape[3])


def processed_shapes(files: Mapping[str, "Path"], default: str) -> tuple[str, set[tuple[int, ...]]]:
    """Return the name of a checkpoint's processor, and the shapes of its arrays for a tall and a wide image.

    Args:
        files: Small files of the checkpoint, by name.
        default: Processor class of transformers, if the files name none.

    Raises:
        CheckpointError: There is no processor.
        UnsupportedModelError: The processor has an unsupported operation.
    """
    import numpy as np

    from qeff_zoo.media.image_processor import read_image_processor

    processor = read_image_processor(files, default or None)
    shapes = {
        processor([np.zeros((*size, 3), np.uint8)])["pixel_values"].shape
        for size in ((300, 200), (200, 300))
    }
    return processor.name, shapes


def variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the size of images."""
    height, width = image_size(checkpoint.companions, recipe.image_processor)
    return {"height": height, "width": width}


def problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's processor."""
    try:
        image_size(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    return []


def specializations(name: str) -> Callable[[Shape], list[dict[str, Any]]]:
    """Return a function that returns a specialization for single images, and one for a whole batch.

    Args:
        name: Name of the specializations.
    """
    return lambda shape: named(name, [{"batch_size": n} for n in sorted({1, shape.batch_size})])


#: Planner of the compared calls.
stages = lazy("qeff_zoo.validation.trial.cases:image_stages")
