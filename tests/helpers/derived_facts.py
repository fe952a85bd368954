# SPDX-License-Identifier: Apache-2.0
"""Config fields of tiny models whose values Hugging Face's results depend on, found without a table.

A recipe's comparison with Hugging Face proves that a field is not dropped if the result without it differs clearly.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import parity
import torch
from parity import Array

from qeff_zoo import contract
from qeff_zoo.export import loader
from qeff_zoo.export.tracing import ctc_tracing
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import list_recipes
from qeff_zoo.validation import tiny_models

Path = tuple[str, ...]


def field_that_shows(recipe: Recipe) -> str | None:
    """Return a field of a recipe's tiny configs that changes Hugging Face's result if it is left out; None without one.

    The field keeps the shapes of all weights, and no plain recipe's tiny config has it with the same value.
    """
    for tiny in recipe.tiny:
        config = tiny_models.config_of(recipe, tiny)
        model = parity.hugging_face(config, recipe.task)
        expected = result(model)
        noise = np.abs(expected - result(parity.in_float64(model))).max()
        clear = parity.DROPPED * parity.TOLERANCE["portable"] * noise
        for path, value in fields_in(tiny.config):
            if (path, repr(value)) in plain_fields():
                continue
            other = result_without(path, config, recipe.task, model)
            if other is not None and np.abs(expected - other).max() > clear:
                return ".".join(path)
    return None


def fields_in(config: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """List the fields of a configuration, and those of configurations in it."""
    for name, value in config.items():
        if name.endswith("_config"):
            yield from (((name, *path), inner) for path, inner in fields_in(value))
        else:
            yield (name,), value


@cache
def plain_fields() -> set[tuple[Path, str]]:
    """Return the fields, with their values, in tiny configs of recipes whose computation is another model's."""
    plain = [recipe for recipe in list_recipes() if recipe.special.startswith("Plain ")]
    tiny = [tiny for recipe in plain for tiny in recipe.tiny]
    return {(path, repr(value)) for one in tiny for path, value in fields_in(one.config)}


def result_without(path: Path, config: dict[str, Any], task: str, model: Any) -> Array | None:
    """Return the result of a model with the same weights but a field's default; None if there is no such model."""
    left = without(config, path)
    weights = model.state_dict()
    try:
        meta = loader.build_meta(left, task).state_dict()  # without memory, whatever the size
        if {name: value.shape for name, value in meta.items()} != {
            name: value.shape for name, value in weights.items()
        }:
            return None
        changed = parity.hugging_face(left, task)
        changed.load_state_dict(weights)
        other = result(changed)
    except (
        Exception
    ):  # whatever a config class, or a model, raises of sizes that do not go together
        return None
    return other if other.shape == result(model).shape else None


def without(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a configuration without a field."""
    first, *rest = path
    if rest:
        return {**config, first: without(config[first], tuple(rest))}
    return {name: value for name, value in config.items() if name != first}


def result(model: Any) -> Array:
    """Return a model's logits or hidden states of a few tokens, or of a short recording."""
    inputs = torch.from_numpy(parity.tokens(rows=1))
    if model.main_input_name != "input_ids":
        features = ctc_tracing.example(model)[0].shape[2:]  # of a frame; none of samples
        shape = (1, 64, *features) if features else (1, 4000)
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)  # what a model makes as it runs is of its own type
    try:
        with torch.no_grad():
            return model(inputs)[0].double().numpy()
    finally:
        torch.set_default_dtype(before)


def are_compared() -> list[Recipe]:
    """Return the recipes of models that read text or audio alone.

    Images are swapped in test_images.py; the recipe of a composed model's text has that text's properties.
    """
    return [
        recipe
        for recipe in list_recipes()
        if contract.find(recipe.task).reads in ("text", "audio")
        and not contract.find(recipe.task).before
    ]
