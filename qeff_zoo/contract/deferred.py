# SPDX-License-Identifier: Apache-2.0
"""Values that are imported when they are first used."""

import importlib
from collections.abc import Callable
from typing import Any


def lazy(name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns one of its values.

    Args:
        name: `module:value`.
    """
    module, _, value = name.partition(":")
    return lambda: getattr(importlib.import_module(module), value)
