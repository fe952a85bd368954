# SPDX-License-Identifier: Apache-2.0
"""Commands that describe recipes: `list` and `show`."""

import argparse
from dataclasses import asdict
from typing import Any

from qeff_zoo.cli.options import command
from qeff_zoo.terminal.printing import print_json, table


def list_command(arguments: argparse.Namespace) -> None:
    """Print recipes or models."""
    from qeff_zoo.registry import list_recipes
    from qeff_zoo.validation.judgement.known_models import list_models

    if arguments.models:
        models = [asdict(model) for model in list_models()]
        columns = ["model_id", "recipe", "task", "status"]
    else:
        models = [_facts(recipe) for recipe in list_recipes()]
        columns = ["model_type", "tasks", "architectures"]
    if arguments.json:
        print_json(models)
        return
    rows = [[_joined(entry[column]) for column in columns] for entry in models]
    print(table(rows, columns))


def _joined(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else value or ""


def _facts(recipe: Any) -> dict[str, Any]:
    from qeff_zoo.checkpoint.formats import methods_of
    from qeff_zoo.contract import tasks_of

    return {
        "model_type": recipe.model_type,
        "architectures": list(recipe.architectures),
        "task": recipe.task,
        "tasks": list(tasks_of(recipe)),
        "quant_methods": methods_of(),
    }


def _in_words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def show_command(arguments: argparse.Namespace) -> None:
    """Print the declarations of a recipe."""
    from qeff_zoo.checkpoint.formats import methods_of
    from qeff_zoo.contract import tasks_of
    from qeff_zoo.export.transforms import in_words
    from qeff_zoo.plan.request import OPTIONS
    from qeff_zoo.registry import file_name, find_recipe
    from qeff_zoo.validation.judgement.known_models import list_models

    recipe = find_recipe(arguments.model_type)
    models = [model for model in list_models() if model.recipe == file_name(recipe.model_type)]
    shapes = {
        name: {k: v for k, v in asdict(shape).items() if v} for name, shape in recipe.shapes.items()
    }
    if arguments.json:
        transforms = [
            {"name": t.name, "parameters": dict(t.parameters), "does": in_words(t)}
            for t in recipe.transforms
        ]
        facts = {**_facts(recipe), "special": recipe.special, "transforms": transforms}
        print_json({**facts, "shapes": shapes, "models": [asdict(model) for model in models]})
        return
    print(f"{recipe.model_type}: {recipe.special}\n")
    rows = [
        ["architectures", ", ".join(recipe.architectures)],
        ["tasks", ", ".join(tasks_of(recipe))],
        ["quantized with", ", ".join(methods_of())],
        *([f"transform {t.name}", in_words(t)] for t in recipe.transforms),
        *(
            [f"--target {target} {OPTIONS[name].flag}", _in_words(value)]
            for target, flags in recipe.compile_flags.items()
            for name, value in flags.items()
        ),
        *(
            [f"--profile {name}", ", ".join(f"{k} {v}" for k, v in shape.items())]
            for name, shape in shapes.items()
        ),
        *([f"{model.status} model", model.model_id] for model in models),
    ]
    print(table(rows, []))


# --- arguments ----------------------------------------------------------------------------------


def _add_list(commands: Any) -> None:
    parser = command(commands, "list", "list the architectures that have a recipe")
    parser.add_argument(
        "--models",
        action="store_true",
        help="list checkpoints instead, with their validation records",
    )


def _add_show(commands: Any) -> None:
    parser = command(commands, "show", "show a recipe")
    parser.add_argument("model_type", metavar="MODEL_TYPE", help="model type of the recipe")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_list, {"list": list_command}),
    (_add_show, {"show": show_command}),
)
