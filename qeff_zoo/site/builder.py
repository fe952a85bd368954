# SPDX-License-Identifier: Apache-2.0
"""Command builder: choices of a page, and the pieces of which its script makes command lines and Python.

The script only joins pieces; every word of others is quoted here.
"""

import shlex
from collections.abc import Iterable
from typing import Any

from qeff_zoo import targets
from qeff_zoo.contract import NAMES, Task, example, find, for_task
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.package.option import Option
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import Recipe
from qeff_zoo.site.content import Variant

#: Options that set the context of a package: of decoders, then of encoders.
_CONTEXTS = ("ctx_len", "seq_lens")
#: Folder of a built package in the printed lines.
_FOLDER = "package"


def choices(
    name: str, *, hub: bool, task: str, recipe: Recipe | None, variants: Iterable[Variant]
) -> dict[str, Any] | None:
    """Return the data of a model's command builder; None if there is nothing to build and nothing to pull.

    Args:
        name: Name of the model.
        hub: Whether it is a Hub id; otherwise it is the name of a folder.
        task: Hub pipeline tag.
        recipe: Recipe of the model; None without one.
        variants: Packages of the model.
    """
    listed = [variant for variant in variants if variant.usable]
    known = find(task) if task in NAMES else None
    if not listed and (recipe is None or known is None):
        return None
    option = _context_option(known)
    source = name if hub else f"./{name}"
    return {
        "devices": _devices(known if recipe else None, listed),
        "context": _contexts(option, known, recipe, listed) if option else None,
        "packages": [_package(variant, name, hub=hub) for variant in listed],
        "build": {
            "line": [f"qeff-zoo build {shlex.quote(source)}", f" -o {_FOLDER}"],
            "python": [f"package = qeff_zoo.build({source!r}", ")"],
            "name": _FOLDER,
        }
        if recipe and known
        else None,
        "example": example(task),
        "serves": bool(known and known.commands.serve),
    }


def _context_option(task: Task | None) -> Option | None:
    named = (OPTIONS[name] for name in _CONTEXTS)
    return next((option for option in named if task and task.takes(option)), None)


def _devices(task: Task | None, variants: list[Variant]) -> list[dict[str, Any]]:
    """Return the targets that read the task's inputs, and those of the packages, with their storage formats."""
    devices = []
    for name in targets.NAMES:
        target = targets.find(name)
        stored = [variant.weights for variant in variants if variant.target == name]
        built = task is not None and task.reads in target.reads
        weights = [
            weight for weight in target.weights if weight in stored or (built and weight != STORED)
        ]
        if weights:
            note = (
                "Requires the compiler of its SDK. Without it, add --prepare-only, and compile the folder elsewhere."
                if target.compiles_offline
                else ""
            )
            devices.append({"name": name, "weights": weights, "note": note})
    return devices


def _contexts(
    option: Option, task: Task | None, recipe: Recipe | None, variants: list[Variant]
) -> dict[str, Any]:
    of_recipe = for_task(recipe, task.name).shapes.values() if recipe and task else ()
    values = [getattr(shape, option.name) for shape in of_recipe]
    texts = [
        ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for value in values
        if value
    ]
    texts += [variant.context for variant in variants if variant.context]
    ordered = sorted({*texts}, key=lambda text: [int(part) for part in text.split(",")])
    return {"flag": option.flag, "name": option.name, "values": ordered}


def _package(variant: Variant, name: str, *, hub: bool) -> dict[str, Any]:
    remote = shlex.quote(variant.remote)
    line = f"qeff-zoo pull {name} --key {variant.key} --from {remote}"
    python = f"package = qeff_zoo.pull({name!r}, key={variant.key!r}, remote={variant.remote!r})"
    if not hub:
        line = f"qeff-zoo pull {remote} --key {variant.key}"
        python = f"package = qeff_zoo.pull({variant.remote!r}, key={variant.key!r})"
    return {
        "device": variant.target,
        "weights": variant.weights,
        "context": variant.context,
        "label": f"{variant.name} {variant.key[:8]}",
        "level": variant.level,
        "pull": line,
        "python": python,
        "name": variant.key,
    }
