# SPDX-License-Identifier: Apache-2.0
"""qeff_zoo/unsupported.json without the reasons of architectures that have a recipe by now."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from qeff_zoo import unsupported
from qeff_zoo.contract import (
    FEATURE_EXTRACTION,
    IMAGE_TEXT_TO_TEXT,
    IMAGE_TO_TEXT,
    TEXT_GENERATION,
    tasks_of,
)
from qeff_zoo.recipe import Recipe

PATH = Path(__file__).parents[2] / "qeff_zoo" / "unsupported.json"
#: Lists whose types may have a recipe of another task.
_BY_DEFAULT = (TEXT_GENERATION, FEATURE_EXTRACTION, IMAGE_TEXT_TO_TEXT)

_TYPES = re.compile(r'("types": )(\[[^\]]*\])')


def reasons(text: str, recipes: Iterable[Recipe]) -> str:
    """Return the content of the file without the entries of supported types.

    Args:
        text: Content of the file, with one line for each entry.
        recipes: Every recipe.
    """
    recipes = list(recipes)
    kept: list[str] = []
    covered: set[str] = set()
    known = {recipe.model_type for recipe in recipes}
    for line in text.splitlines():
        line = _TYPES.sub(lambda types: _without(types, known), line)
        if opened := re.search(r'"([\w-]+)": \{$', line):
            covered = _covered(opened[1], recipes)
        entry = re.match(r' "([^"]+)": \{.*\},?$', line)
        if entry and entry[1] in covered:
            continue
        if re.match(r" ?\}", line):
            kept[-1] = kept[-1].rstrip(",")
        kept.append(line)
    changed = "\n".join(kept) + "\n"
    json.loads(changed)
    return changed


def _without(types: re.Match[str], known: set[str]) -> str:
    """Return the types of a kind without those that have a recipe."""
    return types[1] + json.dumps([name for name in json.loads(types[2]) if name not in known])


def _covered(task: str, recipes: list[Recipe]) -> set[str]:
    """Return the types that have a recipe for the task of a list; none for another entry of the file."""
    if task not in unsupported.tasks():
        return set()
    if task in _BY_DEFAULT:
        also = {task, IMAGE_TO_TEXT} if task == IMAGE_TEXT_TO_TEXT else {task}
        return {recipe.model_type for recipe in recipes if recipe.task in also}
    return {recipe.model_type for recipe in recipes if task in tasks_of(recipe)}
