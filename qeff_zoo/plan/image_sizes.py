# SPDX-License-Identifier: Apache-2.0
"""Pictures of any size for programs of fixed ones: how many patches those have that a package is made for."""

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
#: Patches of a picture, by default: those of one of 448 x 448 pixels, of most models.
_PATCHES = 1024
#: Rows of features of a picture, by default of models whose processors make as many of every picture.
_ROWS = 280


def choose_image_sizes(
    checkpoint: Checkpoint, recipe: Recipe, target: Target, decisions: Decisions
) -> dict[str, Any]:
    """Choose sizes of pictures, where a target has fixed ones and a model has not.

    Args:
        checkpoint: Its config says how large a patch is.
        recipe: As it is for the task.
        target: That is compiled for.
        decisions: Record of the shape, with the requested sizes.

    Returns:
        What `qeff_zoo.recipe.PatchShape` has besides; nothing where pictures need no size, and nobody may choose one.
    """
    flag, images = OPTIONS[_NAME].flag, recipe.images
    tower = images.geometry(checkpoint.model_config) if images and target.static_shapes else None
    if tower is None:
        if decisions.value[_NAME]:
            decisions.refuse(
                f"{flag} is for models that read pictures of any size, and for targets whose programs have fixed ones: "
                f"not for recipe {recipe.model_type!r} and --target {target.name}. Leave it out."
            )
        return {}
    unit = tower.unit
    if not decisions.value[_NAME]:
        rows = _ROWS if tower.positions else _PATCHES // tower.merge**2
        decisions.set(_NAME, (_as_square(rows, unit),), "default")
    patches = sorted({*_counts(decisions.value[_NAME], unit, tower.merge**2, decisions)})
    return {"patches": tuple(patches), "merged": tower.merge**2, "window": tower.window}


def read_in_any_size(recipe: Recipe, roles: Collection[str]) -> str:
    """Name what programs read in any size that nothing fills up; "" where there is nothing like that.

    Args:
        recipe: As it is for the task.
        roles: Of the programs.
    """
    images, sounds = recipe.images, recipe.sounds
    if images and "vision" in roles and images.any_size:
        return "pictures of any size"
    return sounds.any_length if sounds else ""


def _as_square(rows: int, unit: int) -> str:
    """Return the size of a picture of so many rows of features that is nearly a square."""
    tall = next(size for size in range(math.isqrt(rows), 0, -1) if rows % size == 0)
    return f"{tall * unit}x{rows // tall * unit}"


def _counts(sizes: tuple[str, ...], unit: int, merged: int, decisions: Decisions) -> Iterator[int]:
    """Yield the patches of pictures, rounded up to those that are merged; refuse sizes that are none."""
    for size in sizes:
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
        rows = math.prod(-(-int(side) // unit) for side in found.groups()) if found else 0
        if rows < 2:  # graphs are traced for two or more
            decisions.refuse(
                f"{OPTIONS[_NAME].flag} is {size!r}; expected HEIGHTxWIDTH in pixels, as 448x672, and more than one "
                f"square of {unit} x {unit}. Correct it."
            )
        yield rows * merged
