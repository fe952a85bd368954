# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are known, and what was run with each: the files of `validated_models/` -> a status per model id.

`ORG/NAME.json` is evidence of a checkpoint, `_tiny/MODEL_TYPE.json` of a recipe's tiny models, `_targets/TARGET.json`
of the tiny models of all recipes on another target; all are written by `validate --record`. `_speculation.json` is
evidence of what drafts leave behind in them, written by `scripts/reject_drafts`. `declared.json` lists checkpoints that
have no evidence of their own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import registry, targets
from qeff_zoo.checkpoint.formats import methods_of
from qeff_zoo.contract import tasks_of
from qeff_zoo.package.identity import digest
from qeff_zoo.plan.spec import EXPORTER_REVISION, spec_of
from qeff_zoo.recipe import Recipe

#: From least to most: named; its architecture's tiny models agree; its own weights do; they do on the device.
STATUSES = ("declared", "tiny", "emulated", "checkpoint", "simulated", "device")
_BESIDE = Path(__file__).parents[2] / "validated_models"
#: Installed beside this file; in a checkout beside the package.
FOLDER = _BESIDE if _BESIDE.is_dir() else _BESIDE.parent.parent / "validated_models"
_DECLARED, _TINY, _TARGETS = "declared.json", "_tiny", "_targets"
_SPECULATION = "_speculation.json"

#: What a compiler made of tiny models, the worst first, and how that is said of a graph that is made otherwise now.
_OLDER = {"refused": "was refused", "differs": "differed", "agrees": "agreed"}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint, and how far it was tried.

    Args:
        model_id: On the Hub, or the name of a folder.
        model_type: Model type of its configuration; None for a pipeline of several models.
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
        folder: Folder such as `validated_models/`.
    """
    recipes = {recipe.model_type: recipe for recipe in registry.list_recipes()}
    proved = {model.model_id: model for model in _read_evidence(folder, recipes)}
    declared = json.loads((folder / _DECLARED).read_bytes())["models"]
    wanted = {entry["model_type"] for entry in declared} & recipes.keys()
    agreed = {name: agreeing_tasks(recipes[name], folder) for name in wanted}
    named = {entry["model_id"]: _declare(entry, recipes, agreed) for entry in declared}
    return sorted({**named, **proved}.values(), key=lambda model: model.model_id.lower())


def recipe_digest(recipe: Recipe) -> str:
    """Digest what evidence of a recipe is of: what it does to models, and the tiny ones it is tried on."""
    tried = json.loads(json.dumps([asdict(tiny) for tiny in recipe.tiny]))
    for tiny in tried:
        for name in ("image_processor", "ctx_len"):
            if not tiny[name]:  # of most
                del tiny[name]
    return digest({"recipe": spec_of(recipe), "tiny": tried}, "qz-tiny-1")


def tiny_evidence(model_type: str, folder: Path = FOLDER) -> Path:
    """Return where the evidence of a recipe's tiny models lies, if there is any.

    Args:
        model_type: Model type of the recipe.
        folder: Folder such as `validated_models/`.
    """
    return folder / _TINY / f"{registry.file_name(model_type)}.json"


def agreeing_tasks(recipe: Recipe, folder: Path = FOLDER) -> frozenset[str]:
    """Return the tasks for which a recipe's tiny models agreed with Hugging Face, as the recipe is now.

    Args:
        recipe: Recipe with its own task.
        folder: Folder such as `validated_models/`.
    """
    path = tiny_evidence(recipe.model_type, folder)
    verdicts = json.loads(path.read_bytes()) if path.is_file() else {}
    if verdicts.get("recipe") != recipe_digest(recipe):
        return frozenset()
    return frozenset(
        name for name, task in verdicts["tasks"].items() if task["verdict"] == "validated"
    )


def target_evidence(target: str, folder: Path = FOLDER) -> Path:
    """Return where it is kept what became of tiny models on a target.

    Args:
        target: Name of the target.
        folder: Folder such as `validated_models/`.
    """
    return folder / _TARGETS / f"{target}.json"


def made_of(recipe: Recipe, target: str) -> dict[str, Any]:
    """Return what a target's verdict is of: a recipe, and the revisions of what makes programs of it."""
    return {
        "recipe": recipe_digest(recipe),
        "exporter": EXPORTER_REVISION,
        "target": targets.find(target).revision,
    }


def verdict(recipe: Recipe, target: str, folder: Path = FOLDER) -> str:
    """Return what became of a recipe's tiny models on a target, in the past tense where that is to be tried again.

    Args:
        recipe: Recipe with its own task.
        target: Name of the target.
        folder: Folder such as `validated_models/`.
    """
    return _worst(recipe, target, target_evidence(target, folder))


def speculation_evidence(folder: Path = FOLDER) -> Path:
    """Return where it is kept what rejected drafts left behind in tiny models.

    Args:
        folder: Folder such as `validated_models/`.
    """
    return folder / _SPECULATION


def speculation(recipe: Recipe, folder: Path = FOLDER) -> str:
    """Return whether a recipe's tiny models agree with themselves when drafts were rejected, see `verdict`.

    Args:
        recipe: Recipe with its own task.
        folder: Folder such as `validated_models/`.
    """
    return _worst(recipe, targets.NAMES[0], speculation_evidence(folder))


def _worst(recipe: Recipe, target: str, path: Path) -> str:
    """Return the worst verdict of a file on a recipe's tiny models."""
    known = json.loads(path.read_bytes())["models"] if path.is_file() else {}
    named = (f"{recipe.model_type}-{tiny.name}" for tiny in recipe.tiny)
    verdicts = [known[name] for name in named if name in known]
    worst = next(
        (name for name in _OLDER if name in {result["verdict"] for result in verdicts}), ""
    )
    current = all(result.get("made_of") == made_of(recipe, target) for result in verdicts)
    return worst if current else _OLDER[worst]


def _read_evidence(folder: Path, recipes: Mapping[str, Recipe]) -> Iterator[Model]:
    for file in folder.glob("[!_]*/*.json"):
        content = json.loads(file.read_bytes())
        covered = content["model_type"] in recipes
        yield Model(
            model_id=content["model_id"] or content["name"],
            model_type=content["model_type"],
            recipe=registry.file_name(content["model_type"]) if covered else None,
            task=content["task"],
            status=_highest(content["records"]),
        )


def _highest(records: list[dict[str, Any]]) -> str:
    """Return the highest level at which some package of the checkpoint agreed."""
    levels = [record["level"] for record in records if record["verdict"] == "validated"]
    return max(levels, key=STATUSES.index, default="failed")


def _declare(
    entry: Mapping[str, Any], recipes: Mapping[str, Recipe], agreed: Mapping[str, frozenset[str]]
) -> Model:
    recipe = recipes.get(entry["model_type"])
    if recipe is None or not _covers(recipe, entry):
        recipe = None
    tried = agreed[recipe.model_type] if recipe else frozenset()
    return Model(
        model_id=entry["model_id"],
        model_type=entry["model_type"],
        recipe=registry.file_name(recipe.model_type) if recipe else None,
        task=entry["task"],
        status="tiny" if entry["task"] in tried else "declared",
    )


def _covers(recipe: Recipe, entry: Mapping[str, Any]) -> bool:
    """Whether a recipe supports a checkpoint: its class, its task and its quantization."""
    return (
        entry["architecture"] in recipe.architectures
        and entry["task"] in tasks_of(recipe)
        and entry.get("quant_method", "none") in methods_of()
    )
