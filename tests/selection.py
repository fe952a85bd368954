# SPDX-License-Identifier: Apache-2.0
"""Which tests a change needs: `scripts/test --changed [REF]`.

A change of recipes selects their cases and those of the recipes that derive from them; other tests stay, and all do
when anything else has changed that a graph depends on.
"""

import ast
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.registry import file_name

#: Test files whose parameters name recipes, or models of recipes.
PER_RECIPE = {
    "test_encoders",
    "test_facts",
    "test_full_size",
    "test_qaic_graph",
    "test_qnn_htp",
    "test_recipes",
}
#: What no recipe's test depends on.
_APART = ("docs/", "benchmarks/", "examples/", "scripts/", "validated_models/", "mkdocs.yml")


def changed_since(ref: str, root: Path) -> list[str]:
    """Return the files of a repository that differ from a revision, and those that git does not know.

    Raises:
        ValueError: There is no such revision, or no repository.
    """
    found: list[str] = []
    for command in (
        ["diff", "--name-only", ref, "--"],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"Cannot tell what changed since {ref!r}: {done.stderr.strip()}")
        found += done.stdout.splitlines()
    return sorted(set(found))


def affected(changed: Iterable[str], sources: Mapping[str, str]) -> set[str] | None:
    """Return the file names of all recipes that a change touches; None for every recipe.

    Args:
        changed: Paths in the repository.
        sources: File name, without suffix, -> text of every recipe.
    """
    touched: set[str] = set()
    for path in changed:
        folder, _, name = path.rpartition("/")
        if folder == "recipes" and name.endswith(".py") and not name.startswith("_"):
            touched.add(name.removesuffix(".py"))
        elif not path.startswith(_APART) and not path.endswith(".md"):
            return None
    bases = {name: _bases(text) for name, text in sources.items()}
    while more := {name for name in bases if bases[name] & touched} - touched:
        touched |= more
    return touched


def _bases(text: str) -> set[str]:
    """Return the recipes that a recipe imports."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return {node.module for node in imports if node.level == 1 and node.module}


def recipe_named(value: Any, recipes: Iterable[str], models: Mapping[str, str]) -> str | None:
    """Return the recipe that a test's parameter names: `qwen3`, `qwen3-base`, or a model id of `models`."""
    if not isinstance(value, str):
        return None
    plain = file_name(models.get(value, value))
    named = [name for name in recipes if plain == name or plain.startswith(f"{name}_")]
    return max(named, key=len, default=None)


def is_needed(module: str, parameters: Iterable[Any], touched: set[str], root: Path) -> bool:
    """Say whether a test stays.

    Args:
        module: Of the test.
        parameters: Values that it is run with.
        touched: From `affected`.
        root: Of the repository.
    """
    if module not in PER_RECIPE:
        return True
    recipes = {*touched, *(path.stem for path in (root / "recipes").glob("[!_]*.py"))}
    published = json.loads((root / "tests" / "full_size_configs.json").read_bytes())
    models = {entry["model_id"]: entry["model_type"] for entry in published}
    named = {recipe_named(value, recipes, models) for value in parameters} - {None}
    return not named or bool(named & touched)
