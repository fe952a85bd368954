# SPDX-License-Identifier: Apache-2.0
"""Calls of a model's repeated layers, recorded in one run: arguments, and readers of the results.

A skipped layer returns its inputs, as if it had computed; so a model that counts its layers, or selects some by number,
still finds all of them. The calls determine which layers may be skipped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

_Links = dict[int, int]


@dataclass(frozen=True)
class Calls:
    """Calls of the layers: each once, in order.

    Args:
        links: Positions of arguments with results of the previous layer, and the results' numbers.
        apart: Layers whose results do not reach the next layer unchanged, or not at those positions.
        read: Layers whose results are read by more than the next layer, such as the last one by the norm.
        given: Other arguments of each layer: items of two layers are identical, or equal.
        results: Structure of each layer's results.
    """

    links: _Links
    apart: frozenset[int]
    read: frozenset[int]
    given: Sequence[Sequence[Any]]
    results: Sequence[TreeSpec]

    def skip(self, index: int, layer: Any) -> None:
        """Remove a layer's weights, in place, and let it return its inputs."""
        for module in layer.modules():
            module._parameters.clear()
            module._buffers.clear()
        form = self.results[index]
        positions = {result: place for place, result in self.links.items()}

        def forward(_: Any, *args: Any, **kwargs: Any) -> Any:
            given = tree_leaves((args, kwargs))
            taken = (positions.get(result) for result in range(form.num_leaves))
            handed = [None if place is None else given[place] for place in taken]
            return tree_unflatten(handed, form)

        layer.forward = MethodType(forward, layer)


class _Readers(TorchFunctionMode):
    """Records which layers' results are read by others than the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, list[int]] = {}  # layers by the id of a result
        self.read: set[int] = set()
        self.inside: int | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.made and (result is None or _tensors(result)):  # more than a size
            self.note((args, kwargs))
        return result

    def note(self, read: Any) -> None:
        """Record that the running layer, or other code, reads the tensors."""
        own = () if self.inside is None else (self.inside, self.inside - 1)
        for tensor in _tensors(read):
            self.read.update(one for one in self.made.get(id(tensor), ()) if one not in own)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Log:
    """Records of the layers' hooks, in order."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self.readers = _Readers()
        self.order: list[int] = []
        self.given: list[list[Any]] = []
        self.results: list[list[Any]] = []
        self.forms: list[TreeSpec] = []
        self.written: set[int] = set()  # whose results change before the next layer
        self._versions: list[int] = []
        self.hooks = [
            hook
            for index, layer in enumerate(layers)
            for hook in (
                layer.register_forward_pre_hook(partial(self._before, index), with_kwargs=True),
                layer.register_forward_hook(partial(self._after, index), with_kwargs=True),
            )
        ]

    def _before(self, index: int, _: Any, args: Any, kwargs: Any) -> None:
        if self.results and self._versions != _versions(self.results[-1]):
            self.written.add(self.order[-1])
        self.readers.inside = index
        self.order.append(index)
        self.given.append(tree_leaves((args, kwargs)))

    def _after(self, index: int, _: Any, __: Any, ___: Any, output: Any) -> None:
        self.readers.inside = None
        leaves, form = tree_flatten(output)
        self.results.append(leaves)
        self.forms.append(form)
        self._versions = _versions(leaves)
        for tensor in _tensors(leaves):
            self.readers.made.setdefault(id(tensor), []).append(index)


def _versions(leaves: list[Any]) -> list[int]:
    return [tensor._version for tensor in _tensors(leaves)]


def watch(layers: nn.ModuleList, run: Callable[[], Any]) -> Calls | None:
    """Record a model's calls of its layers.

    Args:
        layers: All repeated layers.
        run: Function that calls the model once.

    Returns:
        Calls; None unless each layer is called once, in order, and has its own weights.
    """
    owners = [{id(parameter) for parameter in layer.parameters()} for layer in layers]
    if sum(map(len, owners)) != len(set().union(*owners)):  # a weight of several layers
        return None
    log = _Log(layers)
    try:
        with log.readers:
            returned = run()
    finally:
        for hook in log.hooks:
            hook.remove()
    if log.order != list(range(len(layers))):
        return None
    log.readers.note(returned)
    carried = [_carried(*pair) for pair in zip(log.results, log.given[1:], strict=False)]
    links = next((found for found in carried if found), {})
    apart = {index for index, found in enumerate(carried) if found != links or not found}
    given = [[item for place, item in enumerate(one) if place not in links] for one in log.given]
    return Calls(
        links, frozenset(apart | log.written), frozenset(log.readers.read), given, log.forms
    )


def _carried(results: list[Any], given: list[Any]) -> _Links:
    """Return the positions of a layer's arguments with results of the previous layer, and the results' numbers."""
    positions = {id(result): place for place, result in enumerate(results) if _tensors(result)}
    return {place: positions[id(item)] for place, item in enumerate(given) if id(item) in positions}
