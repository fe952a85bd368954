# SPDX-License-Identifier: Apache-2.0
"""Transforms: changes of a Hugging Face module before it is traced, each with the number of changed modules."""

import ast
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import ExportError
from qeff_zoo.recipe import Transform

#: Transforms of every model, by module, with the version that is part of a package's identity.
ALWAYS: Mapping[str, int] = MappingProxyType({"attention": 1, "rope": 1})
#: Module of the transforms that have none.
_BLOCKS = "expert_blocks"


def apply(transform: Transform, model: Any) -> None:
    """Apply one declared transform to `model` in place.

    Raises:
        ExportError: The number of changed modules differs from the recipe's.
    """
    expected = transform.count(model.config.get_text_config())
    changed = _function(transform.name)(model, **transform.parameters)
    if changed != expected:
        raise ExportError(
            f"Transform {transform.name!r} changed {changed} modules of {type(model).__name__}, expected {expected} "
            f"from its config. transformers may have renamed them: correct the recipe's count or the transform."
        )


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(f"{__name__}.{name}") is not None


def _function(name: str) -> Callable[..., int]:
    """Return the function that applies a transform: that of its module, or of `expert_blocks`."""
    module = importlib.import_module(f"{__name__}.{name if _has_module(name) else _BLOCKS}")
    apply_: Callable[..., int] = module.apply
    return apply_ if _has_module(name) else partial(apply_, transform=name)


def in_words(transform: Transform) -> str:
    """Return the description of a transform, the first line of its module or function, without an import."""
    name = transform.name
    path = Path(__file__).with_name(f"{name if _has_module(name) else _BLOCKS}.py")
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
    described = module if _has_module(name) else functions[name]
    return (ast.get_docstring(described) or "").partition("\n")[0]
