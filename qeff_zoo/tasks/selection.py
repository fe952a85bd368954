# SPDX-License-Identifier: Apache-2.0
"""Selection of the task of a build, with its source and its problems."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qeff_zoo.recipe import Recipe

from . import NAMES, TEXT_RANKING, find, served_by, task_of, tasks_of

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


#: Prefix of the names of an output head's tensors.
_HEAD = "lm_head."
#: Suffix of the name of a class with a head.
_SUFFIX = re.compile(r"(For[A-Z]\w*|LMHeadModel)$")


@dataclass(frozen=True, kw_only=True)
class ChosenTask:
    """A chosen task.

    Args:
        task: Hub pipeline tag; the recipe's default if the requested task is unsupported.
        by: Source of the choice.
        problems: Problems of a build for the task, one sentence each.
    """

    task: str
    by: str
    problems: tuple[str, ...] = ()


def classes_of(checkpoint: "Checkpoint", recipe: Recipe, requested: str | None) -> list[str]:
    """Return a checkpoint's classes, with the class that has a head in place of the base class if it applies.

    Many tools write the base class, such as `LlamaModel`, beside weights with a head. transformers goes by the weights.

    Args:
        checkpoint: Opened checkpoint; its weights may be remote.
        recipe: Recipe of its `model_type`.
        requested: Task that the user requests, if any.
    """
    heads = {
        _SUFFIX.sub("Model", one): one
        for one in reversed(recipe.architectures)
        if find(recipe.task).has_head and task_of(one, recipe) == recipe.task
    }

    def has_head(name: str) -> bool:
        if name not in recipe.architectures or requested == recipe.task:
            return True  # nothing else can be built, or is to be
        return any(tensor.startswith(_HEAD) for tensor in checkpoint.names_at_hand)

    return [
        heads[name] if name in heads and has_head(name) else name
        for name in checkpoint.architectures
    ]


def choose(
    name: str,
    recipe: Recipe,
    architectures: Sequence[str],
    companions: Collection[str],
    requested: str | None,
    *,
    ranks: bool = False,
) -> ChosenTask:
    """Choose a task: the requested one, else the one that the checkpoint was trained for, else the recipe's.

    Args:
        name: Name of the checkpoint, for messages.
        recipe: Recipe of its `model_type`.
        architectures: `config.architectures`.
        companions: Files beside the checkpoint, by relative path.
        requested: Task that the user requests, if any.
        ranks: Whether files of sentence-transformers rank texts by logits of tokens.
    """
    made_for = [
        task_of(architecture, recipe)
        for architecture in architectures
        if architecture in recipe.architectures
    ]
    task, by = _first(recipe, made_for, companions, requested, ranks=ranks)
    served = served_by(recipe)
    if task not in served:
        problem = (
            f"{name!r} is to be built for {task!r} ({by}), but recipe {recipe.model_type!r} serves "
            f"{', '.join(served)}. Choose one of those with --task."
        )
        return ChosenTask(task=recipe.task, by=by, problems=(problem,))
    both = recipe.images and recipe.audio  # of one class
    head = find(task).head_of or task
    if made_for and head not in made_for and find(task).has_head and not both:
        classes = [one for one in recipe.architectures if task_of(one, recipe) == head]
        problem = (
            f"{name!r} has architecture {architectures[0]!r}, which has no head for {task!r} ({by}); expected "
            f"{' or '.join(classes)}. Choose {' or '.join(dict.fromkeys(made_for))} with --task, or use a "
            f"checkpoint that was trained for {task!r}."
        )
        return ChosenTask(task=task, by=by, problems=(problem,))
    return ChosenTask(task=task, by=by)


def _first(
    recipe: Recipe,
    made_for: Sequence[str],
    companions: Collection[str],
    requested: str | None,
    *,
    ranks: bool,
) -> tuple[str, str]:
    if requested is not None:
        return requested, "user"
    if ranks:
        return TEXT_RANKING, "checkpoint: modules.json"
    classifies = [task for task in made_for if find(task).answers == "scores"]
    marked = [task for task in map(find, NAMES) if task.companion in companions]
    if marked and not classifies:
        served = tasks_of(recipe)
        task = next((one for one in marked if one.name in served), marked[0])
        return task.name, f"checkpoint: {task.companion}"
    if made_for:
        return (classifies or made_for)[0], "checkpoint: architectures"
    return recipe.task, "recipe"
