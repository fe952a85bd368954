# SPDX-License-Identifier: Apache-2.0
"""Sizes of images for targets with fixed shapes: the numbers of patches that a package is specialized for."""

import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import Recipe
from qeff_zoo.targets.base import Target

_NAME = "image_size"
#: Default number of patches of an image: that of 448 x 448 pixels in most models.
_PATCHES = 1024
#: Default number of feature rows of an image, for models whose processors return the same number for every image.
_ROWS = 280


def choose_image_sizes(
    checkpoint: Checkpoint, recipe: Recipe, target: Target, decisions: Decisions
) -> dict[str, Any]:
    """Choose sizes of images, if the target has fixed shapes and the model takes images of any size.

    Args:
        checkpoint: Checkpoint; its config sets the size of a patch.
        recipe: Recipe for the task.
        target: Target of the build.
        decisions: Record of the shape, with the requested sizes.

    Returns:
        Additional fields of `qeff_zoo.recipe.PatchShape`; empty if images need no size, and then a requested size is
        refused.
    """
    flag, images = OPTIONS[_NAME].flag, recipe.images
    geometry = images.geometry(checkpoint.model_config) if images and target.static_shapes else None
    if geometry is None:
        if decisions.value[_NAME]:
            decisions.refuse(
                f"{flag} is for models that read images of any size, and for targets whose programs have fixed ones: "
                f"not for recipe {recipe.model_type!r} and --target {target.name}. Leave it out."
            )
        return {}
    unit = geometry.unit
    if not decisions.value[_NAME]:
        rows = _ROWS if geometry.positions else _PATCHES // geometry.merge**2
        decisions.set(_NAME, (_as_square(rows, unit),), "default")
    patches = sorted({*_counts(decisions.value[_NAME], unit, geometry.merge**2, decisions)})
    return {"patches": tuple(patches), "merged": geometry.merge**2, "window": geometry.window}


def read_in_any_size(recipe: Recipe, roles: Collection[str]) -> str:
    """Return a description of unpadded inputs of any size that the programs read; "" if there are none.

    Args:
        recipe: Recipe for the task.
        roles: Roles of the programs.
    """
    images, audio = recipe.images, recipe.audio
    if images and "vision" in roles and images.any_size:
        return "images of any size"
    return audio.any_length if audio else ""


def _as_square(rows: int, unit: int) -> str:
    """Return the size of a nearly square image with the given number of feature rows."""
    tall = next(size for size in range(math.isqrt(rows), 0, -1) if rows % size == 0)
    return f"{tall * unit}x{rows // tall * unit}"


def _counts(sizes: tuple[str, ...], unit: int, merged: int, decisions: Decisions) -> Iterator[int]:
    """Yield the numbers of patches of images, rounded up to whole merged patches; refuse invalid sizes."""
    for size in sizes:
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
        rows = math.prod(-(-int(side) // unit) for side in found.groups()) if found else 0
        if rows < 2:  # graphs are traced for two or more
            decisions.refuse(
                f"{OPTIONS[_NAME].flag} is {size!r}; expected HEIGHTxWIDTH in pixels, as 448x672, and more than one "
                f"square of {unit} x {unit}. Correct it."
            )
        yield rows * merged
