# SPDX-License-Identifier: Apache-2.0
"""Repeated layers: find them in a model, group them by kind, and keep only as many as needed to prove the rest.

Two layers are of one kind if their module trees agree in classes, parameter shapes, buffers and attributes, the
config's per-layer lists have equal entries for both, and the model calls them with the same arguments. The first and
the last layer of each kind are traced; the others return their inputs. A signature cannot show code that computes with
the layer's index; the index is therefore watched during the trace.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses import FakeTensor
from transformers import PreTrainedConfig

from qeff_zoo.export.transforms.modules import language_model

from . import calls

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = frozenset({"_forward_hooks", "_forward_pre_hooks"})
_INDEX_NAMES = ("layer_idx", "layer_id", "layer_number", "layer_index")


class WatchedIndex:
    """A layer index that records computations with it.

    Args:
        plain: The index.
        uses: Shared list that receives an entry for every use.
    """

    def __init__(self, plain: int, uses: list[int]) -> None:
        self.plain, self._uses = plain, uses

    def __index__(self) -> int:
        self._uses.append(self.plain)
        return self.plain

    __int__ = __hash__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__index__(), name)

    def __str__(self) -> str:
        return str(self.__index__())

    def __repr__(self) -> str:
        return repr(self.plain)


def _forward(name: str) -> Any:
    def operate(self: WatchedIndex, *others: Any) -> Any:
        return getattr(self.__index__(), name)(*others)

    return operate


for _name in (
    *(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "bool",
        "neg",
        "add",
        "radd",
        "sub",
        "rsub",
        "mul",
        "rmul",
        "truediv",
    ),
    *(
        "rtruediv",
        "floordiv",
        "rfloordiv",
        "mod",
        "rmod",
        "pow",
        "rpow",
        "and",
        "or",
        "xor",
        "divmod",
    ),
):
    setattr(WatchedIndex, f"__{_name}__", _forward(f"__{_name}__"))


def plain(index: Any) -> int:
    """Return a layer index without its watch, since the name of a layer's state is no computation with the index."""
    return index.plain if isinstance(index, WatchedIndex) else int(index)


@dataclass(frozen=True)
class RepeatedLayers:
    """The repeated layers of a model.

    Args:
        path: Path of the module list, e.g. `model.layers`.
        kinds: Kind number of every layer of the full model.
        traced: Indices of the layers that compute, ascending.
        read: Layers whose results something other than the next layer reads.
        apart: Layers whose results do not go straight to the next layer; both are traced.
    """

    path: str
    kinds: tuple[int, ...]
    traced: tuple[int, ...]
    read: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()


def find(model: nn.Module, count: int) -> tuple[str, nn.ModuleList] | None:
    """Return path and list of the `count` repeated layers, the outermost if several lists have that length."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and count > 0:
            return path, module
    return None


def _find_language_model(model: Any, count: int) -> tuple[str, nn.ModuleList] | None:
    """Return the repeated layers of the part that reads embedded text: an encoder beside it may have as many."""
    inner = language_model(model)
    prefix = next(
        f"{path}." if path else "" for path, module in model.named_modules() if module is inner
    )
    layers_ = find(inner, count)
    return None if layers_ is None else (prefix + layers_[0], layers_[1])


def _find_of_half(model: Any, half: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """Return the repeated layers of one half of a model: its longest list that is in no other."""
    lists: dict[str, nn.ModuleList] = {}
    for path, module in half.named_modules():
        inner = path.startswith(tuple(f"{one}." for one in lists))
        if isinstance(module, nn.ModuleList) and len(module) and not inner:
            lists[path] = module
    if not lists:
        return None
    longest = max(lists, key=lambda path: len(lists[path]))
    prefix = next(
        f"{path}." if path else "" for path, submodule in model.named_modules() if submodule is half
    )
    return prefix + longest, lists[longest]


def reduce(
    model: Any, run: Callable[[], Any], *, half: nn.Module | None = None, everything: bool = False
) -> tuple[RepeatedLayers | None, list[int]]:
    """Let only the first and the last repeated layer of every kind compute, in place.

    Args:
        model: A meta-device model.
        run: Function that calls the model once, without any computation, like the later trace.
        half: Module with these layers; None for the one that reads embedded text.
        everything: Whether all layers compute.

    Returns:
        The repeated layers (None for a model without a list of `num_hidden_layers`, or one that does not call them one
        after the other), and a list that is non-empty after the trace if some layer computed with its index.
    """
    config = model.config.get_text_config()
    count = int(getattr(config, "num_hidden_layers", 0))
    repeated = _find_of_half(model, half) if half else _find_language_model(model, count)
    uses: list[int] = []
    if repeated is None:
        return None, uses
    path, layers = repeated
    kinds, recorded = _kinds(config, layers, run)
    if recorded is None:
        return None, uses
    count = len(layers)
    chosen = {
        *(kinds.index(kind) for kind in set(kinds)),
        *(count - 1 - kinds[::-1].index(kind) for kind in set(kinds)),
        *recorded.read,
        *(index + more for index in recorded.apart for more in (0, 1)),
    }
    traced = tuple(range(count)) if everything else tuple(sorted(chosen))
    if len(traced) < count:
        for index, layer in enumerate(layers):
            if index in chosen:
                _watch(layer, index, uses)
            else:
                recorded.skip(index, layer)
    return RepeatedLayers(path, kinds, traced, recorded.read, recorded.apart), uses


def _kinds(
    config: Any, layers: nn.ModuleList, run: Callable[[], Any]
) -> tuple[tuple[int, ...], calls.Calls | None]:
    """Number the kinds of layers, and record their calls."""
    before = signatures(config, layers)
    recorded = calls.watch(layers, run)
    if recorded is None:
        return (), None
    found = [
        (
            before[i],
            _signature(layer, i, config),  # the model's attributes; hooks only record
            *(
                id(one) if isinstance(one, torch.Tensor) else _value(one)
                for one in recorded.given[i]
            ),
        )
        for i, layer in enumerate(layers)
    ]
    numbers = {signature: number for number, signature in enumerate(dict.fromkeys(found))}
    return tuple(numbers[signature] for signature in found), recorded


def signatures(config: Any, layers: nn.ModuleList) -> list[tuple[str, ...]]:
    """Return signatures of layers: their modules, and the entries of the config's lists."""
    lists = _per_layer(config, len(layers))
    return [
        (_signature(layer, i, config, hooks=True), *(repr(values[i]) for values in lists))
        for i, layer in enumerate(layers)
    ]


def _per_layer(config: Any, count: int) -> list[list[Any]]:
    """Return the config's lists with one item per layer, including those computed from other fields."""
    own = [vars(kind) for kind in type(config).__mro__ if not issubclass(PreTrainedConfig, kind)]
    computed = {name for members in own for name in members if isinstance(members[name], property)}
    values = [*vars(config).values(), *(getattr(config, name) for name in sorted(computed))]
    every = list(range(count))  # a list of layers that names all of them
    return [
        value
        for value in values
        if isinstance(value, list) and len(value) == count and value != every
    ]


def _watch(layer: nn.Module, index: int, uses: list[int]) -> None:
    for module in layer.modules():
        for name in _INDEX_NAMES:
            if module.__dict__.get(name) == index:
                module.__dict__[name] = WatchedIndex(index, uses)


def _signature(layer: nn.Module, index: int, config: Any, *, hooks: bool = False) -> str:
    digest = hashlib.sha256()
    for line in _describe(layer, index, config, _HOOKS if hooks else frozenset()):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _describe(layer: nn.Module, index: int, config: Any, hooks: frozenset[str]) -> Iterator[str]:
    for path, module in layer.named_modules():
        yield f"{path}: {type(module).__module__}.{type(module).__qualname__}"
        for name, parameter in module.named_parameters(recurse=False):
            yield f"  {name} {tuple(parameter.shape)} {parameter.dtype}"
        for name, buffer in module.named_buffers(recurse=False):
            # Stored buffers are like parameters.
            stored = name not in module._non_persistent_buffers_set
            yield f"  {name} {tuple(buffer.shape) if stored else _value(buffer)}"
        for name, value in sorted(vars(module).items()):
            is_index = name in _INDEX_NAMES and value == index
            if name not in _OF_EVERY_MODULE - hooks and not is_index:
                yield f"  {name}={'shared' if value is config else _value(value)}"


def _value(value: Any) -> str:
    """Return a description of an attribute; descriptions agree only for values with the same effect."""
    if isinstance(value, bool | int | float | str | bytes | type(None) | type | torch.dtype | Enum):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_value(item) for item in value]
        return f"{type(value).__name__}[{', '.join(items if isinstance(value, list | tuple) else sorted(items))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_meta:
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(data).hexdigest()}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.shape} {value.dtype} {value.tobytes().hex()}"
    if isinstance(value, functools.partial):
        return f"partial {_value(value.func)} {_value(value.args)} {_value(value.keywords)}"
    if isinstance(value, MethodType):
        return f"method {_value(value.__func__)}"
    if isinstance(value, PreTrainedConfig):
        return hashlib.sha256(repr(sorted(value.to_dict().items())).encode()).hexdigest()
    # For any other type only the same object is equal; then more layers are traced than necessary.
    return f"{type(value).__qualname__} {id(value)}"
