# SPDX-License-Identifier: Apache-2.0
"""Reasons why architectures have no recipe, by `model_type`; unsupported.json has them.

A reason stands for one architecture, or for all of a kind. `tests/recipes/test_unsupported.py` compares both with
transformers.
"""

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

#: Entries of unsupported.json besides the lists of tasks.
_GENERAL = {"kinds", "others", "parts", "singles", "newer", "elsewhere"}


@cache
def reasons() -> Mapping[str, Any]:
    """Return the content of unsupported.json."""
    content: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    return content


def tasks() -> tuple[str, ...]:
    """Return the tasks with a list: a reason for each `model_type`, or the name of its kind."""
    return tuple(name for name in reasons() if name not in _GENERAL)


def kinds() -> Mapping[str, tuple[str, ...]]:
    """Return the types that no task computes, by their common reason, which names the recipes that they resemble."""
    return {_reason(kind): tuple(kind["types"]) for kind in reasons()["others"].values()}


def draftable() -> Collection[str]:
    """Return the reasons of kinds of architectures that another task may compute, or that resemble a recipe."""
    of_tasks: Mapping[str, str] = reasons()["kinds"]
    others = reasons()["others"].values()
    return [*of_tasks.values(), *(_reason(kind) for kind in others if "resembles" in kind)]


def _reason(kind: Mapping[str, Any]) -> str:
    recipes = " or ".join(f"recipes/{name}.py" for name in kind.get("resembles", ()))
    return f"{kind['reason']} A recipe would resemble {recipes}." if recipes else kind["reason"]


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    """Return one entry for each type: its reason, or the models that it is a part of.

    A reason of its own has precedence over that of a kind, and an earlier list over a later one.
    """
    content = reasons()
    entries: dict[str, Mapping[str, Any]] = {}
    for task in reversed(tasks()):
        for name, entry in content[task].items():
            if entry.get("kind") == "encoder":
                continue  # of another task than its own
            kind = content["kinds"].get(entry.get("kind"))
            if "reason" in entry or name not in entries:
                entries[name] = {"reason": entry.get("reason", kind)}
    for reason, types in kinds().items():
        entries |= {name: {"reason": reason} for name in types}
    newer = "It is new in transformers {}, which this release does not use yet."
    entries |= {
        name: {"reason": newer.format(release)} for name, release in content["newer"].items()
    }
    entries |= content["singles"] | content["elsewhere"]
    return entries | {name: {"wholes": wholes} for name, wholes in content["parts"].items()}


def unsupported_types() -> set[str]:
    """Return every type with a reason; some have a recipe for another task."""
    return {*_entries()}


def reason_of(model_type: str, has_recipe: Callable[[str], bool]) -> str:
    """Return the reason why an architecture has no recipe, in sentences; empty without one.

    Args:
        model_type: Type of the architecture.
        has_recipe: Function that tests whether a type has a recipe.
    """
    entry = _entries().get(model_type, {"reason": ""})
    if "wholes" not in entry:
        return str(entry["reason"])
    whole = next(filter(has_recipe, entry["wholes"]), None)
    if whole:
        return f"It is a part of {whole!r} models, which have a recipe: give a checkpoint of the whole model."
    whole = entry["wholes"][0]
    return f"It is a part of {whole!r} models, which have none. {reason_of(whole, has_recipe)}".rstrip()
