# SPDX-License-Identifier: Apache-2.0
"""Images of any size: graphs whose height and width are symbols, if the processor keeps the aspect ratio of images."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo import registry, targets
from qeff_zoo.contract import named
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape
from qeff_zoo.tasks.images import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the size of images, or of an example if each image has its own."""
    _, shapes = whole_images.processed_shapes(checkpoint.companions, recipe.image_processor)
    height, width = min(shapes)[2:]
    size = {"height": int(height), "width": int(width)}
    return {**size, "any_size": True} if len(shapes) > 1 else size


def problems(advice: str) -> Callable[["Checkpoint", Recipe, Request], list[str]]:
    """Return a function that returns the problems of a checkpoint's processor.

    Args:
        advice: Change of preprocessor_config.json that gives all images one size.
    """

    def found(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
        try:
            name, shapes = whole_images.processed_shapes(
                checkpoint.companions, recipe.image_processor
            )
        except ZooError as error:
            return [str(error)]
        target = targets.find(request.target or targets.NAMES[0])
        if len(shapes) > 1 and target.static_shapes:
            return [
                f"The processor {name!r} keeps the aspect ratio of images, so that each has its own size, and programs "
                f"of --target {target.name} have one. Expected a processor with one size: {advice} in "
                "preprocessor_config.json, or choose --target ort."
            ]
        return []

    return found


def sized(checkpoint: "Checkpoint", shape: Shape) -> Shape:
    """Return the shape of the program, with the size of an example if each image has its own."""
    size = variant(checkpoint, registry.recipe_for(checkpoint.config), shape, {})
    return replace(shape, image_size=(f"{size['height']}x{size['width']}",) * ("any_size" in size))


def specializations(name: str) -> Callable[[Shape], list[dict[str, Any]]]:
    """Return a function that returns a specialization for single images, and one for a batch.

    Args:
        name: Name of the specializations.
    """

    def of(shape: Shape) -> list[dict[str, Any]]:
        sides = (int(side) for size in shape.image_size for side in size.split("x"))
        sizes = dict(zip(("height", "width"), sides, strict=False))
        return named(name, [{"batch_size": n, **sizes} for n in sorted({1, shape.batch_size})])

    return of
