# SPDX-License-Identifier: Apache-2.0
"""Architectures that transformers lacks: their configurations and models, one file per `model_type`.

Each is written like transformers' own, and computes the same as the code of its authors; a test compares both. Code
that creates a model, including the reference process, calls `register` first. From then on the model is like any other.
"""

import importlib
import importlib.util

from qeff_zoo.registry import file_name


def register(model_type: str) -> None:
    """Register an architecture that transformers lacks; no effect for any other.

    Args:
        model_type: Value in config.json.
    """
    name = f"{__name__}.{file_name(model_type)}"
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name).register()
