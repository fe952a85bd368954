# SPDX-License-Identifier: Apache-2.0
"""docs/models.md and one page for each task: the architectures with a recipe, and the reason why others have none."""

from collections.abc import Iterator
from pathlib import Path

from documentation.tables import table
from qeff_zoo import unsupported
from qeff_zoo.contract import FEATURE_EXTRACTION, NAMES, TEXT_GENERATION, find, served_by, tasks_of
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import list_recipes
from qeff_zoo.validation.judgement.known_models import speculation, verdict

DOCS = Path(__file__).parents[2] / "docs"
#: Class of transformers that maps every architecture; other automatic classes map those with a head.
_EVERY = "AutoModel"
_MARK = "<!-- written by scripts/update_readme -->\n"


def pages() -> dict[Path, str]:
    """Return the text of every page about models, by its path."""
    recipes = list_recipes()
    made = {DOCS / "models" / f"{task}.md": page(task, recipes) for task in NAMES}
    return made | {DOCS / "models.md": index(recipes)}


def index(recipes: list[Recipe]) -> str:
    """Return docs/models.md, which counts the architectures of each task."""
    return (
        f"{_MARK}# Supported models\n\n{len(recipes)} architectures have a recipe. Each page lists the recipes of a "
        "task, and the reason why other architectures of transformers have none. `qeff-zoo list` prints the recipes, "
        "`qeff-zoo show MODEL_TYPE` prints one, and `qeff-zoo list --models` lists checkpoints with their "
        "[level of validation](validation.md#levels).\n\n"
        f"{counts(recipes, '')}\n\n## Other kinds of models\n\n"
        "Architectures of transformers that no task above computes (qeff_zoo/unsupported.json). Parts of other models "
        "are left out.\n\n"
        f"{table(['reason', 'model_type'], [[why, ', '.join(types)] for why, types in _others().items()])}\n"
    )


def _others() -> dict[str, list[str]]:
    """Return the types that no task computes, by their common reason."""
    types = {
        reason: [f"`{name}`" for name in names] for reason, names in unsupported.kinds().items()
    }
    for name, single in unsupported.reasons()["singles"].items():
        types.setdefault(single["reason"], []).append(f"`{name}`")
    return types


def counts(recipes: list[Recipe], docs: str) -> str:
    """Return the table of tasks, two in a row: models, number of recipes, and guide.

    Args:
        recipes: All recipes.
        docs: Path from the page of the table to docs/, with a slash at its end.
    """
    cells = []
    for task in map(find, NAMES):
        number = sum(task.name in served_by(recipe) for recipe in recipes)
        link = f"[{number}]({docs}models/{task.name}.md)"
        cells.append([f"`{task.name}`", f"[{task.does}]({docs}{task.guide})", link])
    cells += [[""] * 3] * (len(cells) % 2)
    half = len(cells) // 2
    rows = [left + right for left, right in zip(cells[:half], cells[half:], strict=True)]
    return table(["task", "models that", "architectures"] * 2, rows)


def page(task: str, recipes: list[Recipe]) -> str:
    """Return the page of a task."""
    does, guide = find(task).does, find(task).guide
    own = [recipe for recipe in recipes if recipe.task == task]
    also = [
        recipe.model_type for recipe in recipes if recipe.task != task and task in served_by(recipe)
    ]
    parts = [f"{_MARK}# {task}", f"Models that {does}. The guide is [{guide}](../{guide})."]
    if own:
        parts += ["## Supported", f"{len(own)} architectures. {_explained(own)}", _recipes(own)]
    if also:
        names = ", ".join(f"`{name}`" for name in also)
        parts += [
            "## Supported by recipes of other tasks",
            f"With `--task {task}`, unless the checkpoint selects it: {names}.",
        ]
    if task in unsupported.tasks():
        covered = {recipe.model_type: recipe.task for recipe in recipes}
        rows = [[f"`{name}`", why] for name, why in reasons(covered, task)]
        classes = find(task).auto_classes
        mapping = _EVERY if _EVERY in classes else classes[0]
        if rows:
            parts += [
                "## Unsupported",
                f"{len(rows)} other types in transformers' `{mapping}`, each with the reason (unsupported.json).",
                table(["model_type", "reason"], rows),
            ]
    return "\n\n".join(parts) + "\n"


def _explained(recipes: list[Recipe]) -> str:
    lines = []
    if any(verdict(recipe, "qnn-htp") for recipe in recipes):
        lines.append(
            "Column [qnn-htp](../qnn-htp.md): whether the tiny models of the recipe agree with Hugging Face on the "
            "simulator, or *agreed* with an earlier revision of the graph."
        )
    if any(speculation(recipe) for recipe in recipes):
        lines.append(
            "Column [drafts](../speculation.md): whether the tiny models generate the same text when drafts are "
            "rejected at every position."
        )
    return " ".join(lines) or "Every recipe is validated against unpatched transformers."


def _recipes(recipes: list[Recipe]) -> str:
    rows = []
    for recipe in recipes:
        others = ", ".join(task for task in tasks_of(recipe) if task != recipe.task)
        drafts = speculation(recipe)
        names = ", ".join(recipe.architectures)
        rows.append(
            [
                f"`{recipe.model_type}`",
                names,
                others,
                verdict(recipe, "qnn-htp"),
                drafts,
                recipe.special,
            ]
        )
    headers = ["model_type", "architectures", "other tasks", "qnn-htp", "drafts", "properties"]
    return table(headers, rows)


def reasons(covered: dict[str, str], task: str) -> Iterator[tuple[str, str]]:
    """Yield each type of a list in qeff_zoo/unsupported.json and the reason why it has no recipe.

    Args:
        covered: `model_type` of each recipe -> its task.
        task: Task of the list.
    """
    data = unsupported.reasons()
    for name, why in data[task].items():
        text = why["reason"] if "reason" in why else data["kinds"][why["kind"]]
        if task in (TEXT_GENERATION, FEATURE_EXTRACTION) and name in covered:
            other = covered[name]
            text += (
                " It has a recipe for that task."
                if other == FEATURE_EXTRACTION
                else f" It has a recipe for {other}."
            )
        if f"{name}_text" in covered:
            text += f" Its text model alone has a recipe: `{name}_text`."
        yield name, text
