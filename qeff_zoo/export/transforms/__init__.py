# SPDX-License-Identifier: Apache-2.0
"""Transforms: changes of a Hugging Face module before it is traced, each with the number of changed modules."""

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import ExportError
from qeff_zoo.recipe import Transform

#: Transforms of every model, by module, with the version that is part of a package's identity.
ALWAYS: Mapping[str, int] = MappingProxyType({"attention": 1, "rope": 1})


def apply(transform: Transform, model: Any) -> None:
    """Apply one declared transform to `model` in place.

    Raises:
        ExportError: The number of changed modules differs from the recipe's.
    """
    expected = transform.count(model.config.get_text_config())
    module = importlib.import_module(f"{__name__}.{transform.name}")
    changed = module.apply(model, **transform.parameters)
    if changed != expected:
        raise ExportError(
            f"Transform {transform.name!r} changed {changed} modules of {type(model).__name__}, expected {expected} "
            f"from its config. transformers may have renamed them: correct the recipe's count or the transform."
        )


def in_words(transform: Transform) -> str:
    """Return the description of a transform, the first line of its module, without an import."""
    spec = importlib.util.find_spec(f"{__name__}.{transform.name}")
    assert spec is not None
    assert spec.origin is not None
    module = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or "").partition("\n")[0]
