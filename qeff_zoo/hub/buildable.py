# SPDX-License-Identifier: Apache-2.0
"""What a build would choose, and whether it is possible: the alternative where no package will do.

In: a model and what was asked of it. Out: its recipe's choices; what stands in the way of a build. Reads a checkpoint's
configuration, and imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qeff_zoo import registry
from qeff_zoo.choices import CHOICES, Request
from qeff_zoo.errors import CheckpointError, PlanError, UnsupportedModelError


def defaults(model_type: str | None, task: str | None, profile: str | None) -> dict[str, Any]:
    """Return what a build would choose where nothing is asked, the most important first.

    Args:
        model_type: Of the checkpoint; None if it is not known.
        task: That was asked for; None for the recipe's.
        profile: One of the recipe's shapes; None for the first.

    Raises:
        PlanError: The recipe has no such profile.
    """
    from qeff_zoo.tasks import NAMES, for_task

    chosen: dict[str, Any] = {name: CHOICES[name].default for name in ("target", "weights")}
    if model_type is None:
        return chosen
    try:
        recipe = registry.find_recipe(model_type)
    except UnsupportedModelError:
        return chosen  # a package of a recipe that this version does not have
    if task not in (None, *NAMES):
        return chosen  # nor this task
    recipe = for_task(recipe, task or recipe.task)
    profile = profile or next(iter(recipe.shapes))
    if profile not in recipe.shapes:
        known = ", ".join(recipe.shapes)
        raise PlanError(
            [f"--profile is {profile!r}, but recipe {model_type!r} has {known}. Choose one."]
        )
    return {"task": recipe.task, **chosen, **asdict(recipe.shapes[profile])}


def problems(checkpoint: str | None, wishes: Mapping[str, Any], revision: str | None) -> list[str]:
    """Say why no package can be built of a model; nothing if one can.

    Args:
        checkpoint: Model id or folder; None if it is not known.
        wishes: What is asked of the package.
        revision: Of the checkpoint.
    """
    if checkpoint is None:
        return ["What to build is not known. Give a model id in place of a URL."]
    from qeff_zoo import plan
    from qeff_zoo.checkpoint import open_checkpoint

    if unknown := sorted(wishes.keys() - CHOICES.keys()):
        return [f"A build here knows no {', '.join(unknown)}. Leave it out."]
    try:
        opened = open_checkpoint(checkpoint, revision=revision, need_weights=False)
        plan.resolve(opened, Request(**wishes), plan.NO_WEIGHTS)
    except PlanError as error:
        return error.problems
    except (CheckpointError, UnsupportedModelError) as error:
        return [str(error)]
    return []
