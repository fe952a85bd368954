# SPDX-License-Identifier: Apache-2.0
"""Which tests run: those that a change needs, `scripts/test --changed [REF]`, and a sample of those that are crossed.

A change of recipes selects their cases and those of the recipes that derive from them; other tests stay, and all do
when anything else has changed that a graph depends on.

A test marked `sampled(n)` runs one case in n, every second module marked `turns(n)` one test in n, and a test marked
`full` does not run, unless QEFF_ZOO_TEST_EVERY=1. What runs depends on the commit, so that each runs some day;
QEFF_ZOO_TEST_DRAW=NAME draws as a commit of that name. Tests that build whole packages take turns.
"""

import ast
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qeff_zoo.registry import file_name, list_recipes

#: Test files whose parameters name recipes, or models of recipes.
PER_RECIPE = {
    "test_encoders",
    "test_every_storage",
    "test_facts",
    "test_full_size",
    "test_qaic_graph",
    "test_qnn_htp",
    "test_recipes",
}
#: Run every test in full, as a release does.
EVERY = os.environ.get("QEFF_ZOO_TEST_EVERY") == "1"
#: Share of kills and of damaged files that are tried by default: one in so many.
TENTH = 10
_DRAW = "QEFF_ZOO_TEST_DRAW"
_NO_COMMIT = "none"  # name of the draw outside a repository
#: What no recipe's test depends on.
_APART = (
    *("docs/", "benchmarks/", "examples/", "scripts/", "validated_models/", "mkdocs.yml"),
    "qeff_zoo/unsupported.json",
)


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


@functools.cache
def draw_name() -> str:
    """Return the name of the draw: the one that is set, else the commit of this folder, for later processes too."""
    if not os.environ.get(_DRAW):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        found = _NO_COMMIT
        with suppress(OSError):  # no git
            done = subprocess.run(command, capture_output=True, text=True)
            found = found if done.returncode else done.stdout.strip()[:12]
        os.environ[_DRAW] = found
    return os.environ[_DRAW]


def draw_in_words() -> str:
    """Return the line that a test run prints."""
    if EVERY:
        return "samples: every case"
    return f"samples: {_DRAW}={draw_name()}"


def seed(*names: object) -> int:
    """Return a number that depends on names and on the draw."""
    named = json.dumps([draw_name(), *map(str, names)]).encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=6).digest())


def few(count: int) -> int:
    """Return a tenth of a number of trials, rounded up; the number itself with QEFF_ZOO_TEST_EVERY=1."""
    return count if EVERY else -(-count // TENTH)


def first_tinies() -> set[str]:
    """Name the main case of every recipe: its first tiny config."""
    return {f"{recipe.model_type}-{recipe.tiny[0].name}" for recipe in list_recipes()}


def half(names: Iterable[str]) -> set[str]:
    """Draw half of some names, by a hash of each and of the draw."""
    return {*sorted(names, key=lambda name: (seed(name), name))[::2]}


def sample(
    cases: Mapping[str, Sequence[Hashable]], share: int, kept: Collection[str] = ()
) -> set[str]:
    """Draw one case of a test in so many, by a hash of its name and of the draw: a new case moves no other.

    Args:
        cases: Name -> value of each parameter. Where parameters are crossed, each value of each is drawn at least once,
            but of a parameter with more values than the sample has cases.
        share: Number of cases of which one is drawn.
        kept: Names of cases that are in every sample.

    Returns:
        Names of the drawn cases, at least one.
    """
    order = sorted(cases, key=lambda name: (seed(name), name))
    crossed = any(len(values) > 1 for values in cases.values())
    if not crossed:
        drawn = {name for name in order if seed(name) % share == 0}
        return {*kept, *drawn} or {*order[:1]}
    count = -(-len(cases) // share)
    axes = [*zip(*cases.values(), strict=True)]
    drawn, recorded = {*kept}, {value for name in kept for value in enumerate(cases[name])}
    large = [number for number, values in enumerate(axes) if len({*values}) > count]
    recorded |= {(number, value) for number in large for value in axes[number]}
    for name in order:
        if new := {*enumerate(cases[name])} - recorded:
            drawn.add(name)
            recorded |= new
    left = count - len(drawn)
    return drawn | {*[name for name in order if name not in drawn][: max(left, 0)]}
