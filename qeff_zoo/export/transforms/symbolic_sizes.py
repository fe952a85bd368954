# SPDX-License-Identifier: Apache-2.0
"""Sizes that stay symbols: forwards whose `int(size)` or `len(tensor)` would fix those of the example."""

from typing import Any

from .modules import give, rebound


def apply(model: Any, *, name: str) -> int:
    """Let the modules of a class compute sizes without `int`, transformers' `torch_int` and the `len` of a tensor.

    transformers' checks of sizes are left out: a trace lacks the numbers in their tensors.

    Args:
        model: Hugging Face model.
        name: Suffix of the class name of the modules.

    Returns:
        Number of changed modules.
    """
    count = 0
    for module in model.modules():
        if type(module).__name__.endswith(name):
            give(module, rebound(type(module).forward, **_NAMES))
            count += 1
    return count


def _length(values: Any) -> Any:
    return values.shape[0] if hasattr(values, "shape") else len(values)


def _same(size: Any) -> Any:
    return size


def _unchecked(*_: Any) -> None:
    pass


_NAMES = {"int": _same, "torch_int": _same, "len": _length, "torch_compilable_check": _unchecked}
