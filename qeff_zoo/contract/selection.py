# SPDX-License-Identifier: Apache-2.0
"""Selection of the task of a build, with its source and its problems."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qeff_zoo.contract import HEAD, NAMES, computed_by, find, served_by, task_of, tasks_of
from qeff_zoo.recipe import Recipe

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


#: Prefix of the names of an output head's tensors.
_HEAD = "lm_head."
#: Source of a task that nothing else selects.
_BY_RECIPE = "recipe"


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
        HEAD.sub("Model", architecture): architecture
        for architecture in reversed(recipe.architectures)
        if find(recipe.task).has_head and task_of(architecture, recipe) == recipe.task
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
    marked: str | None = None,
) -> ChosenTask:
    """Choose a task: the requested one, else the one that the checkpoint was trained for, else the recipe's.

    Args:
        name: Name of the checkpoint, for messages.
        recipe: Recipe of its `model_type`.
        architectures: `config.architectures`.
        companions: Files beside the checkpoint, by relative path.
        requested: Task that the user requests, if any.
        marked: Task that modules of sentence-transformers are for, if they name one.
    """
    known = [architecture for architecture in architectures if _is_related(architecture, recipe)]
    made_for = [
        task
        for entry in known
        if entry in recipe.architectures and (task := computed_by(entry, recipe)) is not None
    ]
    task, by = _first(recipe, made_for, companions, requested, marked)
    served = served_by(recipe)
    if task not in served:
        problem = (
            f"{name!r} is to be built for {task!r} ({by}), but recipe {recipe.model_type!r} serves "
            f"{', '.join(served)}. {_advice(served, requested)}"
        )
        return ChosenTask(task=recipe.task, by=by, problems=(problem,))
    both = recipe.images and recipe.audio  # of one class
    head = find(task).head_of or task
    own = any(entry in recipe.architectures for entry in known)
    fits = head in made_for or (find(head).on_request and _has_class(known, head))
    if own and not fits and find(task).has_head and not both:
        classes = [
            architecture
            for architecture in recipe.architectures
            if task_of(architecture, recipe) == head
            or (find(head).on_request and _has_class([architecture], head))
        ]
        others = " or ".join(dict.fromkeys(made_for or _bare(recipe)))
        problem = (
            f"{name!r} has architecture {architectures[0]!r}, which has no head for {task!r} ({by}); expected "
            f"{' or '.join(classes)}. Choose {others} with --task, or use a checkpoint that was trained for {task!r}."
        )
        return ChosenTask(task=task, by=by, problems=(problem,))
    if by == _BY_RECIPE and known and not find(task).has_head:
        return ChosenTask(task=task, by=by, problems=(_uncomputed(name, recipe, known[0]),))
    return ChosenTask(task=task, by=by)


def _advice(served: Sequence[str], requested: str | None) -> str:
    """Return what to do with a checkpoint for a task that its recipe does not serve."""
    if requested is not None:
        return "Choose one of those with --task."
    # Models with modules of sentence-transformers have no head.
    built = " or ".join(task for task in served if not find(task).has_head)
    others = f", or build it without its modules with --task {built}" if built else ""
    return f"Run the model with sentence-transformers itself{others}."


def _has_class(architectures: Sequence[str], task: str) -> bool:
    return any(architecture.endswith(find(task).suffixes) for architecture in architectures)


def _uncomputed(name: str, recipe: Recipe, architecture: str) -> str:
    """Return why a checkpoint whose head no task computes is not built without it unless requested."""
    computed = [
        one for one in recipe.architectures if HEAD.search(one) and computed_by(one, recipe)
    ]
    expected = " or ".join(computed) or "a model without a head"
    return (
        f"{name!r} has architecture {architecture!r}, whose head no task computes; expected {expected}. Give --task "
        f"{' or '.join(_bare(recipe))} to build the model without its head."
    )


def _is_related(architecture: str, recipe: Recipe) -> bool:
    """Return whether a class is one of a recipe's, or has another head on its base class."""
    return not {architecture, HEAD.sub("Model", architecture)}.isdisjoint(recipe.architectures)


def _bare(recipe: Recipe) -> list[str]:
    """Return the tasks that build a recipe's models without a head."""
    return [task for task in served_by(recipe) if not find(task).has_head]


def headless(recipe: Recipe, architectures: Sequence[str], task: str) -> list[str]:
    """Return the classes whose head a task leaves out.

    Args:
        recipe: Recipe of the classes' `model_type`.
        architectures: Names of classes.
        task: Task of the build.
    """
    if find(task).has_head:
        return []
    return [
        architecture
        for architecture in architectures
        if _is_related(architecture, recipe) and HEAD.search(architecture)
    ]


def unknown_class(name: str, recipe: Recipe, architectures: Sequence[str], task: str) -> str | None:
    """Return why a checkpoint of another class is not built for a task; None if all its classes are known.

    Args:
        name: Name of the checkpoint.
        recipe: Recipe of its `model_type`.
        architectures: Names of classes.
        task: Task of the build.
    """
    bare = headless(recipe, architectures, task)
    unknown = [
        architecture
        for architecture in architectures
        if architecture not in (*recipe.architectures, *bare)
    ]
    if not unknown:
        return None
    without = _bare(recipe) if _is_related(unknown[0], recipe) else []
    advice = f", give --task {' or '.join(without)} to build it without its head" if without else ""
    return (
        f"{name!r} has architecture {unknown[0]!r}, but recipe {recipe.model_type!r} covers "
        f"{', '.join(recipe.architectures)}. Use a checkpoint of one of those{advice}, or extend the recipe."
    )


def _first(
    recipe: Recipe,
    made_for: Sequence[str],
    companions: Collection[str],
    requested: str | None,
    marked: str | None,
) -> tuple[str, str]:
    if requested is not None:
        return requested, "user"
    if marked is not None:
        return marked, "checkpoint: modules.json"
    classifies = [task for task in made_for if find(task).scores]
    beside = [task for task in map(find, NAMES) if task.companion in companions]
    if beside and not classifies:
        served = tasks_of(recipe)
        task = next((one for one in beside if one.name in served), beside[0])
        return task.name, f"checkpoint: {task.companion}"
    if made_for:
        return (classifies or made_for)[0], "checkpoint: architectures"
    return recipe.task, _BY_RECIPE
