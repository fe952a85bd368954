# SPDX-License-Identifier: Apache-2.0
"""Calls of a model's repeated layers, recorded in one run: arguments, and readers of the results.

A layer that is skipped hands on what it was given, as if it had computed; so a model that counts its layers, or picks
some by number, still finds all of them. What may be skipped follows from the calls.
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
    """How each layer was called: once, in order.

    Args:
        links: Argument places of a layer that hold results of the layer before, and which.
        apart: Layers whose results the next one is not given straight, or not at those places.
        read: Layers whose results something else reads than the next one, as the norm does those of the last.
        given: Other arguments of each layer: items of two layers are identical, or equal.
        results: Form of each layer's results.
    """

    links: _Links
    apart: frozenset[int]
    read: frozenset[int]
    given: Sequence[Sequence[Any]]
    results: Sequence[TreeSpec]

    def skip(self, index: int, layer: Any) -> None:
        """Take a layer's weights, in place, and let it hand on what it is given."""
        for module in layer.modules():
            module._parameters.clear()
            module._buffers.clear()
        form = self.results[index]
        places = {result: place for place, result in self.links.items()}

        def forward(_: Any, *args: Any, **kwargs: Any) -> Any:
            given = tree_leaves((args, kwargs))
            taken = (places.get(result) for result in range(form.num_leaves))
            handed = [None if place is None else given[place] for place in taken]
            return tree_unflatten(handed, form)

        layer.forward = MethodType(forward, layer)


class _Readers(TorchFunctionMode):
    """Notes which layers' results are read by others than the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, list[int]] = {}  # layers by the id of a result
        self.read: set[int] = set()
        self.inside: int | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if self.made and (found is None or _tensors(found)):  # more than a size
            self.note((args, kwargs))
        return found

    def note(self, read: Any) -> None:
        """Note that the layer that runs, or none, reads what is there."""
        own = () if self.inside is None else (self.inside, self.inside - 1)
        for tensor in _tensors(read):
            self.read.update(one for one in self.made.get(id(tensor), ()) if one not in own)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Log:
    """What hooks of layers see, in order."""

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
    """See how a model calls its layers.

    Args:
        layers: All of them.
        run: Calls the model once.

    Returns:
        None unless each layer is called once, in order, and has weights of its own.
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
    """Return which argument places of a layer hold which results of the layer before."""
    found = {id(result): place for place, result in enumerate(results) if _tensors(result)}
    return {place: found[id(item)] for place, item in enumerate(given) if id(item) in found}
