# SPDX-License-Identifier: Apache-2.0
"""Tasks: what goes into a graph and what comes out. One file per Hub pipeline tag, `-` written `_`."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, ModuleType
from typing import Any

from qeff_zoo.recipe import ENCODER_SHAPES, Recipe

#: Every task, and transformers' automatic classes for it: the first that knows a configuration makes the model.
AUTO_CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text-generation": ("AutoModelForCausalLM",),
        # Of T5 the text encoder alone, which is not what AutoModel makes.
        "feature-extraction": ("AutoModelForTextEncoding", "AutoModel"),
        "text-classification": ("AutoModelForSequenceClassification",),
        "token-classification": ("AutoModelForTokenClassification",),
    }
)
#: How the names of transformers' classes end -> the task that they are made for.
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        "ForCausalLM": "text-generation",
        "LMHeadModel": "text-generation",
        "ForSequenceClassification": "text-classification",
        "ForTokenClassification": "token-classification",
        "Model": "feature-extraction",  # no head
    }
)


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """All that `torch.export` needs of a task.

    Args:
        module: Takes the inputs by name, returns a flat tuple.
        inputs: Example inputs, small and on the CPU.
        dynamic_shapes: As `torch.export` takes them, with named dimensions shared between inputs.
        input_names: Of the flattened inputs.
        output_names: Of the outputs.
        then: Applied to the portable graph, in place; one trace may serve several variants.
    """

    module: Any
    inputs: dict[str, Any]
    dynamic_shapes: dict[str, Any]
    input_names: list[str]
    output_names: list[str]
    then: Callable[[Any], object] | None = None


#: Configs' names for the number of positions that a model has a table or a mask for.
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions that a config gives its model, or None if it names none.

    Args:
        config: Raw config.json, or a text model's part of it.
    """
    return next(
        (int(config[name]) for name in POSITIONS if isinstance(config.get(name), int)), None
    )


def looks_ahead(config: Mapping[str, Any]) -> bool:
    """Tell whether tokens of a decoder see those behind them, as in embedding models that were made of one.

    Args:
        config: Raw config.json.
    """
    return config.get("use_bidirectional_attention") in (True, "all")


def module_of(task: str) -> ModuleType:
    """Return the module that defines a task, by its pipeline tag."""
    return importlib.import_module(f"{__name__}.{task.replace('-', '_')}")


def task_of(architecture: str, recipe: Recipe) -> str:
    """Return the task that a class of transformers is made for; the recipe's own where its name does not tell.

    Args:
        architecture: Class name.
        recipe: Of its `model_type`.
    """
    told = (task for suffix, task in _SUFFIXES.items() if architecture.endswith(suffix))
    return next(told, recipe.task)


def tasks_of(recipe: Recipe) -> tuple[str, ...]:
    """Return every task that a recipe serves, its own first: those that its architectures are made for."""
    made_for = (task_of(architecture, recipe) for architecture in recipe.architectures)
    return tuple(dict.fromkeys([recipe.task, *made_for]))


def for_task(recipe: Recipe, task: str) -> Recipe:
    """Return a recipe as it is for one of its tasks."""
    decodes = recipe.task == "text-generation"
    shapes = ENCODER_SHAPES if decodes and task != recipe.task else recipe.shapes
    return replace(recipe, task=task, shapes=shapes)


def auto_class(task: str, config: Any) -> Any:
    """Return transformers' automatic class that makes a task's model.

    Args:
        task: Hub pipeline tag.
        config: The model's, as transformers parses it.
    """
    import transformers

    classes = [getattr(transformers, name) for name in AUTO_CLASSES[task]]
    return next((one for one in classes if type(config) in one._model_mapping), classes[-1])
