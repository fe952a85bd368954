# SPDX-License-Identifier: Apache-2.0
"""Targets: compilers and devices of packages. One folder per target, found by its name.

A target resolves what a plan leaves to it, lowers the portable graph of a program to the best form for its compiler,
compiles it, and opens the program. All other code depends on `Target` alone (`targets/base.py`).
"""

import importlib
from functools import cache

from qeff_zoo.targets.base import Target

#: Every target, the default first: a subpackage with a value `TARGET`, named with `_` for `-`.
NAMES = ("ort", "openvino", "qnn-htp", "qaic", "qnn-aic")


@cache
def find(name: str) -> Target:
    """Return a target by its name, one of `NAMES`."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    target: Target = module.TARGET
    return target


def options() -> tuple[type, ...]:
    """Return the dataclasses whose fields are options of one or several targets, each once."""
    return tuple(dict.fromkeys(option for name in NAMES for option in find(name).options))


def objectives() -> dict[str, tuple[str, ...]]:
    """Return the targets of each objective that options can be chosen for, by measured settings."""
    targets: dict[str, tuple[str, ...]] = {}
    for name in NAMES:
        for objective in find(name).objectives:
            targets[objective] = (*targets.get(objective, ()), name)
    return targets


def on_cards() -> tuple[str, ...]:
    """Return the names of the targets whose programs run on Cloud AI cards."""
    return tuple(name for name in NAMES if find(name).runs_on_cards)
