# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are known, and what was run with each: the files of `validated_models/` -> a status per model id.

`validated_models/ORG/NAME.json` is evidence, written by `validate --record`; `declared.json` lists those without any.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import registry
from qeff_zoo.recipe import Recipe
from qeff_zoo.tasks import tasks_of

#: From least to most: named; its architecture's tiny models agree; its own weights do; they do on the device.
STATUSES = ("declared", "tiny", "checkpoint", "device")
_BESIDE = Path(__file__).parent / "validated_models"
#: Installed beside this file; in a checkout beside the package.
FOLDER = _BESIDE if _BESIDE.is_dir() else _BESIDE.parent.parent / "validated_models"
_DECLARED = "declared.json"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint, and how far it was tried.

    Args:
        model_id: On the Hub, or the name of a folder.
        model_type: Of its configuration; None for a pipeline of several models.
        recipe: File name of the recipe that covers it; None if none does.
        task: Hub pipeline tag.
        status: One of `STATUSES`; "failed" if it was compared and disagreed.
    """

    model_id: str
    model_type: str | None
    recipe: str | None
    task: str
    status: str


def list_models(folder: Path = FOLDER) -> list[Model]:
    """Return every known checkpoint, sorted by name; evidence comes before declarations.

    Args:
        folder: As `validated_models/`.
    """
    recipes = {recipe.model_type: recipe for recipe in registry.list_recipes()}
    proved = {model.model_id: model for model in _read_evidence(folder, recipes)}
    declared = json.loads((folder / _DECLARED).read_bytes())["models"]
    named = {entry["model_id"]: _declare(entry, recipes) for entry in declared}
    return sorted({**named, **proved}.values(), key=lambda model: model.model_id.lower())


def _read_evidence(folder: Path, recipes: Mapping[str, Recipe]) -> Iterator[Model]:
    for file in folder.glob("*/*.json"):
        found = json.loads(file.read_bytes())
        covered = found["model_type"] in recipes
        yield Model(
            model_id=found["model_id"] or found["name"],
            model_type=found["model_type"],
            recipe=registry.file_name(found["model_type"]) if covered else None,
            task=found["task"],
            status=_highest(found["records"]),
        )


def _highest(records: list[dict[str, Any]]) -> str:
    """Return the highest level at which some package of the checkpoint agreed."""
    levels = [record["level"] for record in records if record["verdict"] == "validated"]
    return max(levels, key=STATUSES.index, default="failed")


def _declare(entry: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> Model:
    recipe = recipes.get(entry["model_type"])
    if recipe is None or not _covers(recipe, entry):
        recipe = None
    return Model(
        model_id=entry["model_id"],
        model_type=entry["model_type"],
        recipe=registry.file_name(recipe.model_type) if recipe else None,
        task=entry["task"],
        status="tiny" if recipe else "declared",
    )


def _covers(recipe: Recipe, entry: Mapping[str, Any]) -> bool:
    """Say whether a recipe takes a checkpoint: its class, its task and how it is quantized."""
    return (
        entry["architecture"] in recipe.architectures
        and entry["task"] in tasks_of(recipe)
        and entry.get("quant_method", "none") in recipe.quant_methods
    )
