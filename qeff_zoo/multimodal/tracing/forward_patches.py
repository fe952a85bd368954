# SPDX-License-Identifier: Apache-2.0
"""Patches of transformers' forward for tracing, which end it before features are merged into a text."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

MERGES = (Tensor.masked_scatter, torch.masked_scatter)
_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]
#: Setting that stops transformers from comparing the numbers of placeholders and features, which differ in a trace.
_UNCHECKED = {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}


@contextmanager
def swapped(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace methods of modules in a context, and disable transformers' count of placeholders.

    Args:
        *changes: Module, name of the method, and its replacement.
    """
    for module, name, method in changes:
        module.__dict__[name] = method
    try:
        with mock.patch.dict(os.environ, _UNCHECKED):
            yield
    finally:
        for module, name, _ in changes:
            module.__dict__.pop(name, None)


class Unread:
    """Output of a language model that does not run: its embeddings as last states; other attributes are None."""

    def __init__(self, embeds: Any) -> None:
        self.last_hidden_state = embeds

    def __getitem__(self, _: Any) -> Any:
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def unread(model: Any) -> tuple[Any, str, Any]:
    """Return the change that ends a model's forward before its language model, see `swapped`."""

    def forward(*_: Any, inputs_embeds: Any = None, **__: Any) -> Unread:
        return Unread(inputs_embeds)

    return model.get_decoder(), "forward", forward


class _Alone:
    """Numbers of rows by which a forward would split images, for a single image."""

    def __floordiv__(self, _: Any) -> "_Alone":
        return self

    def prod(self, **_: Any) -> "_Alone":
        return self

    def tolist(self) -> list[None]:
        return [None]


class _Shape(tuple[Any, ...]):
    """Shape with symbolic sizes, whose number of elements is symbolic, too, in contrast to PyTorch's."""

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        return _Shape(value) if isinstance(index, slice) else value

    def numel(self) -> Any:
        return math.prod(self)


def _is_open(shape: Any) -> bool:
    return any(isinstance(size, SymInt) for size in shape)


def alike(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes are equal for all values of their symbols, without new guards on these."""
    return len(shape) == len(other) and all(
        statically_known_true(one == two) for one, two in zip(shape, other, strict=True)
    )


class FeatureRecorder(TorchFunctionMode):
    """Records the features that a forward merges into its text, and rows that replace other tokens."""

    features: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.around: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in MERGES:
            self.features = args[2]
            return args[0]
        if func is Tensor.__setitem__ and _is_of_tokens(args[1], args[0]):
            self.around.append(args[2])
            return None
        if func is torch.as_tensor and any(isinstance(leaf, SymInt) for leaf in tree_leaves(args)):
            return _Alone()
        if func is Tensor.__getitem__ and _is_of_one(args[1], args[0]):
            return args[0].flatten(0, args[1].dim() - 1)
        result = func(*args, **(kwargs or {}))
        return _Shape(result) if func == _SHAPE and _is_open(result) else result


def _is_of_one(index: Any, values: Tensor) -> bool:
    """Return whether an index selects the images or tiles without padding, of a single one."""
    if not isinstance(index, Tensor) or index.dtype is not torch.bool:
        return False
    ones = (1,) * index.dim()
    return index.shape == ones and alike(values.shape[: len(ones)], ones)


def _is_of_tokens(index: Any, embeds: Tensor) -> bool:
    """Return whether rows replace some tokens, (batch, tokens)."""
    chosen = isinstance(index, Tensor) and index.dtype is torch.bool
    return chosen and embeds.dim() == 3 and alike(index.shape, embeds.shape[:2])
