# SPDX-License-Identifier: Apache-2.0
"""model_type -> Recipe, by file name. Files are listed without being imported, and imported one at a time."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from qeff_zoo import unsupported
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import ExportError, UnsupportedModelError, nearest
from qeff_zoo.recipe import Recipe, Transform
from qeff_zoo.settings import expanded

#: Folders with recipes of the user's own, separated like PATH; they come before ours.
RECIPES_ENV = "QEFF_ZOO_RECIPES"
_PACKAGE = "qeff_zoo.recipes"
#: Why key/value heads of a language model with a vision encoder are not repeated.
_BESIDE = "they are those of a language model beside a vision encoder"


def list_model_types() -> list[str]:
    """Return the names of all recipes, sorted, without importing any."""
    return sorted(_places())


def list_recipes() -> list[Recipe]:
    """Return every recipe, sorted by name. Imports neither torch nor transformers.

    Raises:
        Exception: Whatever a broken recipe raises on import; a broken recipe is loud.
    """
    return [_read(_import(folder, name), name) for name, folder in sorted(_places().items())]


def recipes_setting(field: str) -> list[Recipe]:
    """Return the recipes whose files set a field, sorted by name. The other files are searched, not imported.

    Args:
        field: Field of `Recipe`. A recipe that takes over the field of another one repeats it.
    """
    setting = f"{field}=".encode()
    return [
        _read(_import(folder, name), name)
        for name, folder in sorted(_places().items())
        if setting in read_regular(folder / f"{name}.py")
    ]


def find_recipe(model_type: str, architectures: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a Hugging Face `model_type`.

    Args:
        model_type: Type of an architecture.
        architectures: Classes of the checkpoint, if they are known; only recipes with similar classes are suggested.

    Raises:
        UnsupportedModelError: There is none, with the reason or the nearest names.
        TypeError: File defines no `RECIPE`, or one of another model_type.
    """
    name = file_name(model_type)
    for folder in _folders():
        if name in _names(folder):
            return _read(_import(folder, name), name)
    raise no_recipe(model_type, architectures)


def no_recipe(model_type: str, architectures: Sequence[str] = ()) -> UnsupportedModelError:
    """Return the error of a type without a recipe, see `find_recipe`."""
    known = list_model_types()
    start = f"No recipe for model_type {model_type!r}."
    supported = f"Run `qeff-zoo list` for the {len(known)} supported types"
    if reason := reason_of(model_type):
        return UnsupportedModelError(f"{start} {reason} {supported}.")
    near = _suggestion(file_name(model_type), known, architectures)
    return UnsupportedModelError(
        f"{start}{near} {supported}, or `qeff-zoo new` to write recipes/{file_name(model_type)}.py."
    )


def reason_of(model_type: str) -> str:
    """Return the reason why a type has no recipe; empty if none is known, or if it has one."""
    known = {*list_model_types()}
    if file_name(model_type) in known:
        return ""
    return unsupported.reason_of(model_type, lambda whole: file_name(whole) in known)


def _suggestion(name: str, known: Sequence[str], architectures: Sequence[str]) -> str:
    """Return a question for the nearest recipes; empty if an unsupported type is nearer, or the classes differ."""
    others = {file_name(one) for one in unsupported.unsupported_types()} - {*known}
    if others.intersection(nearest(name, [*known, *others])):
        return ""
    near = [one for one in nearest(name, known, most=3) if _resembles(one, architectures)]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _resembles(name: str, architectures: Sequence[str]) -> bool:
    """Whether a recipe has a class with the same ending as one of a checkpoint; without classes, always."""
    endings = {_ending(architecture) for architecture in architectures}
    return not endings or any(
        _ending(architecture) in endings for architecture in find_recipe(name).architectures
    )


def _ending(architecture: str) -> str:
    """Return the part of a class name that names its head: "ForCausalLM"; "Model" without a head."""
    match = re.search(r"For[A-Z]\w*$|LMHeadModel$", architecture)
    return match[0].replace("LMHeadModel", "ForCausalLM") if match else "Model"


def recipe_for(config: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a configuration, with the fields of its language model's recipe if it is composed.

    Args:
        config: Raw config.json.

    Raises:
        UnsupportedModelError: There is none.
    """
    return with_parts(find_recipe(config["model_type"], config.get("architectures") or ()), config)


def with_parts(recipe: Recipe, config: Mapping[str, Any]) -> Recipe:
    """Return a recipe with the fields that the vision encoder and the language model of a config set.

    Args:
        recipe: Recipe of the config's `model_type`.
        config: Raw config.json.
    """
    vision = config.get("vision_config")
    if isinstance(vision, Mapping) and vision.get("model_type") in recipe.vision_encoders:
        recipe = replace(recipe, images=recipe.vision_encoders[vision["model_type"]])
    if recipe.media:
        recipe = replace(recipe, fixed_kv_heads=_BESIDE)
    inner = config.get("text_config")
    kind = inner.get("model_type") if isinstance(inner, Mapping) and recipe.media else None
    if kind is None or file_name(kind) not in list_model_types():
        return recipe
    text = find_recipe(kind)
    return replace(
        recipe,
        transforms=(
            *(transform for transform in text.transforms if _fits(transform, recipe)),
            *recipe.transforms,
        ),
        retains_context=text.retains_context,
        positions_after_padding=text.positions_after_padding,
    )


def usual_text_type(recipe: Recipe) -> str:
    """Return the type of a composed model's language model if its config.json has none; empty if it is unknown.

    Args:
        recipe: Recipe of the composed model, whose tiny configuration has the usual language model first.
    """
    text = recipe.tiny[0].config.get("text_config") if recipe.tiny else None
    return str(text.get("model_type") or "") if isinstance(text, Mapping) else ""


def require_packages(recipe: Recipe) -> None:
    """Refuse to build or compare a model whose class needs packages that cannot be imported here.

    Args:
        recipe: Recipe of the model.

    Raises:
        ExportError: One is not installed, or does not go with what is.
    """
    for name in recipe.requires:
        try:
            importlib.import_module(name)
        # What was built for another torch does not load, or lacks operators.
        except (ImportError, OSError, RuntimeError) as error:
            raise ExportError(
                f"Recipe {recipe.model_type!r} needs the package {name}, which cannot be imported: "
                f"{type(error).__name__}: {error}. Expected it, and torchvision for the torch that is here. "
                f"Run `pip install torch==2.13.0 'qeff-zoo[{name}]'`, from one index."
            ) from error


def _fits(transform: Transform, recipe: Recipe) -> bool:
    """Whether a transform suits images: a window's cache does not record whose its keys are."""
    return not (recipe.media and recipe.media.whole and transform.name == "window_cache")


def file_name(model_type: str) -> str:
    """Return the recipe's file name, without suffix: importable, so `-` and `.` are written `_`."""
    return model_type.replace("-", "_").replace(".", "_")


def _names(folder: Path) -> set[str]:
    """List the recipes of a folder; some file systems find a name by others that they take for the same."""
    try:
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return set()
    return {file[:-3] for file in files if file.endswith(".py") and not file.startswith(("_", "."))}


def _places() -> dict[str, Path]:
    """Return the folder of each recipe, by name."""
    return {name: folder for folder in reversed(_folders()) for name in _names(folder)}


def _folders() -> list[Path]:
    own = [
        expanded(entry, RECIPES_ENV)
        for entry in os.environ.get(RECIPES_ENV, "").split(os.pathsep)
        if entry
    ]
    shipped = importlib.import_module(_PACKAGE).__path__
    return [*own, *(Path(entry) for entry in shipped)]


def _import(folder: Path, name: str) -> ModuleType:
    if str(folder) in importlib.import_module(_PACKAGE).__path__:
        return importlib.import_module(f"{_PACKAGE}.{name}")
    return _import_user(folder / f"{name}.py")


@cache
def _import_user(file: Path) -> ModuleType:
    """Import a user's recipe as if it lay among ours, so that `from .llama import RECIPE` works there too.

    Siblings are looked for among ours first, then in the user's folder. Its own name is another, so that it may derive
    from the one it replaces.
    """
    package = importlib.import_module(_PACKAGE)
    spec = importlib.util.spec_from_file_location(f"{_PACKAGE}.{file.stem} of {file.parent}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = _PACKAGE
    before, path = set(sys.modules), list(package.__path__)
    package.__path__.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        package.__path__[:] = path
        for name in set(sys.modules) - before:  # the user's siblings do not stay in anybody's way
            if str(file.parent) == str(
                Path(getattr(sys.modules[name], "__file__", None) or "/").parent
            ):
                del sys.modules[name]
                vars(package).pop(name.rpartition(".")[2], None)
    return module


def _read(module: ModuleType, name: str) -> Recipe:
    recipe = getattr(module, "RECIPE", None)
    if not isinstance(recipe, Recipe) or file_name(recipe.model_type) != name:
        raise TypeError(
            f"{module.__file__} must define RECIPE, a Recipe whose model_type is written {name!r} as a file name; "
            f"it has {getattr(recipe, 'model_type', recipe)!r}. Correct the recipe."
        )
    return recipe
