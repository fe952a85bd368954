# SPDX-License-Identifier: Apache-2.0
"""Architectures that transformers lacks: their configurations and models, one file per `model_type`.

Each is written as transformers writes its own, and computes what the code of its authors does; a test compares both.
Whoever makes a model, also the reference process, calls `register` first. From then on it is like any other.
"""

import importlib
import importlib.util

from qeff_zoo.registry import file_name


def register(model_type: str) -> None:
    """Let transformers know an architecture that it lacks; of any other, do nothing.

    Args:
        model_type: Value in config.json.
    """
    name = f"{__name__}.{file_name(model_type)}"
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name).register()
