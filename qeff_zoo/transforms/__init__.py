# SPDX-License-Identifier: Apache-2.0
"""torch -> torch: what changes in a Hugging Face module before it is traced, and the count that proves it did."""

import importlib
from typing import Any

from qeff_zoo.errors import ExportError
from qeff_zoo.recipe import Transform


def apply(transform: Transform, model: Any) -> None:
    """Apply one declared transform to `model` in place.

    Raises:
        ExportError: It changed another number of modules than the recipe promises.
    """
    expected = transform.count(model.config.get_text_config())
    module = importlib.import_module(f"{__name__}.{transform.name}")
    changed = module.apply(model, **transform.parameters)
    if changed != expected:
        raise ExportError(
            f"Transform {transform.name!r} changed {changed} modules of {type(model).__name__}, expected {expected} "
            f"from its config. transformers may have renamed them: correct the recipe's count or the transform."
        )
