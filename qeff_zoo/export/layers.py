# SPDX-License-Identifier: Apache-2.0
"""Repeated layers: find them in a model, tell their kinds apart, and keep only as many as prove the rest.

Two layers are of one kind when their module trees agree in classes, parameter shapes, buffers and attributes, and the
config's per-layer lists say the same of both. Of each kind the first and the last are traced. What a signature cannot
show is code that computes with the layer's index; the index is therefore watched while tracing.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig

from qeff_zoo.transforms.modules import language_model

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
_INDEX_NAMES = ("layer_idx", "layer_id", "layer_number", "layer_index")


class WatchedIndex:
    """A layer index that notices when something is computed with it.

    Args:
        plain: The index.
        uses: Shared list that receives a note for every use.
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
    """Return a layer index without its watch; naming a layer's own state is not computing with the index."""
    return index.plain if isinstance(index, WatchedIndex) else int(index)


@dataclass(frozen=True)
class RepeatedLayers:
    """The repeated layers of a model.

    Args:
        path: Of the module list, e.g. `model.layers`.
        kinds: For every layer of the full model, the number of its kind.
        traced: Indices of the layers that stay, ascending.
    """

    path: str
    kinds: tuple[int, ...]
    traced: tuple[int, ...]


def find(model: nn.Module, count: int) -> tuple[str, nn.ModuleList] | None:
    """Return path and list of the `count` repeated layers, the outermost if several lists have that length."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and count > 0:
            return path, module
    return None


def _find_language_model(model: Any, count: int) -> tuple[str, nn.ModuleList] | None:
    """Find the repeated layers of the part that reads embedded text: a tower beside it may have as many."""
    inner = language_model(model)
    prefix = next(f"{path}." if path else "" for path, one in model.named_modules() if one is inner)
    found = find(inner, count)
    return None if found is None else (prefix + found[0], found[1])


def _find_of_half(model: Any, half: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """Find the repeated layers of one half of a model: its longest list that is in no other."""
    lists: dict[str, nn.ModuleList] = {}
    for path, module in half.named_modules():
        inner = path.startswith(tuple(f"{one}." for one in lists))
        if isinstance(module, nn.ModuleList) and len(module) and not inner:
            lists[path] = module
    if not lists:
        return None
    longest = max(lists, key=lambda path: len(lists[path]))
    prefix = next(path for path, module in model.named_modules() if module is half)
    return f"{prefix}.{longest}", lists[longest]


def reduce(
    model: Any,
    run: Callable[[], Any] | None = None,
    *,
    half: nn.Module | None = None,
    everything: bool = False,
) -> tuple[RepeatedLayers | None, list[int]]:
    """Keep of every kind of repeated layer the first and the last, in place.

    Args:
        model: A meta-device model; its config's per-layer lists are cut along.
        run: Calls the model once, on meta, to see how it calls its layers; None if they are known to be a chain.
        half: The module of it whose layers these are; None for that which reads embedded text.
        everything: Keep all layers.

    Returns:
        What was found (None for a model without a list of `num_hidden_layers`, or one that does not call them one
        after the other), and a list that is no longer empty after tracing if some layer computed with its index.
    """
    config = model.config.get_text_config()
    count = int(getattr(config, "num_hidden_layers", 0))
    found = _find_of_half(model, half) if half else _find_language_model(model, count)
    uses: list[int] = []
    if found is None:
        return None, uses
    path, layers = found
    count = len(layers)
    per_layer = _per_layer(config, count)
    signatures = [
        (_signature(layer, i, config), *(repr(values[i]) for values in per_layer.values()))
        for i, layer in enumerate(layers)
    ]
    numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
    kinds = tuple(numbers[signature] for signature in signatures)
    ends = {
        index
        for kind in set(kinds)
        for index in (kinds.index(kind), count - 1 - kinds[::-1].index(kind))
    }
    if run is not None and not _is_chain(layers, kinds, ends, run):
        return None, uses
    traced = tuple(range(count)) if everything else tuple(sorted(ends))
    if len(traced) < count:
        kept = [layers[index] for index in traced]
        for index, layer in zip(traced, kept, strict=True):
            _watch(layer, index, uses)
        model.get_submodule(path.rpartition(".")[0])._modules[path.rpartition(".")[2]] = (
            nn.ModuleList(kept)
        )
        _cut(config, {key: [values[i] for i in traced] for key, values in per_layer.items()})
    return RepeatedLayers(path, kinds, traced), uses


def _per_layer(config: Any, count: int) -> dict[str, list[Any]]:
    """Return the config's lists of one item for each layer, also those that it computes from other fields."""
    own = [vars(kind) for kind in type(config).__mro__ if not issubclass(PreTrainedConfig, kind)]
    computed = {name for members in own for name in members if isinstance(members[name], property)}
    values = {**vars(config), **{name: getattr(config, name) for name in sorted(computed)}}
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, list) and len(value) == count
    }


def _cut(config: Any, lists: dict[str, list[Any]]) -> None:
    """Replace per-layer lists; what the class computes is hidden by a class of this config's own."""
    kind = type(config)
    computed = {key: values for key, values in lists.items() if key not in vars(config)}
    config.__dict__.update({key: lists[key] for key in lists if key not in computed})
    if computed:
        config.__class__ = type(kind.__name__, (kind,), {**computed, "__module__": kind.__module__})


def _is_chain(
    layers: nn.ModuleList, kinds: Sequence[int], ends: Set[int], run: Callable[[], Any]
) -> bool:
    """Tell whether a model, at full depth, calls each layer once and in order, handing results straight on.

    All else that a layer is given must be what the others of its kind are given. Then a layer that is not traced is
    called like the one of its kind that is. Between two neighbours that both are traced, a model may do anything.
    """
    owners = [{id(parameter) for parameter in layer.parameters()} for layer in layers]
    if sum(map(len, owners)) != len(set().union(*owners)):  # a weight of several layers
        return False
    calls: list[tuple[int, list[Any]]] = []
    results: list[list[Any]] = []
    hooks = []
    for index, layer in enumerate(layers):

        def before(_: Any, args: Any, kwargs: Any, index: int = index) -> None:
            calls.append((index, tree_leaves((args, kwargs))))

        def after(_: Any, __: Any, ___: Any, output: Any) -> None:
            results.append(tree_leaves(output))

        hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(layer.register_forward_hook(after, with_kwargs=True))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [index for index, _ in calls] == list(range(len(layers))) and _hand_on(
        [given for _, given in calls], results, kinds, ends
    )


def _hand_on(
    calls: list[list[Any]], results: list[list[Any]], kinds: Sequence[int], ends: Set[int]
) -> bool:
    """Tell whether each call is given the results of the one before at the same places, and shared things elsewhere."""
    carried = [
        {
            place: next(i for i, result in enumerate(before) if result is item)
            for place, item in enumerate(given)
            if isinstance(item, torch.Tensor) and any(result is item for result in before)
        }
        for before, given in zip(results, calls[1:], strict=False)
    ]
    linked = [
        places for last, places in enumerate(carried) if places or not {last, last + 1} <= ends
    ]
    if any(places != linked[0] or not places for places in linked):
        return False
    places = linked[0] if linked else {}
    for kind, given in zip(kinds, calls, strict=True):
        like = calls[kinds.index(kind)]
        if len(given) != len(like) or not all(
            place in places or _same(item, other)
            for place, (item, other) in enumerate(zip(given, like, strict=True))
        ):
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return one is other or bool(one == other)


def _watch(layer: nn.Module, index: int, uses: list[int]) -> None:
    for module in layer.modules():
        for name in _INDEX_NAMES:
            if module.__dict__.get(name) == index:
                module.__dict__[name] = WatchedIndex(index, uses)


def _signature(layer: nn.Module, index: int, config: Any) -> str:
    digest = hashlib.sha256()
    for line in _describe(layer, index, config):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _describe(layer: nn.Module, index: int, config: Any) -> Iterator[str]:
    for path, module in layer.named_modules():
        yield f"{path}: {type(module).__module__}.{type(module).__qualname__}"
        for name, parameter in module.named_parameters(recurse=False):
            yield f"  {name} {tuple(parameter.shape)} {parameter.dtype}"
        for name, buffer in module.named_buffers(recurse=False):
            # What a checkpoint stores is like a parameter.
            stored = name not in module._non_persistent_buffers_set
            yield f"  {name} {tuple(buffer.shape) if stored else _value(buffer)}"
        for name, value in sorted(vars(module).items()):
            is_index = name in _INDEX_NAMES and value == index
            if name not in _OF_EVERY_MODULE and not is_index:
                yield f"  {name}={'shared' if value is config else _value(value)}"


def _value(value: Any) -> str:
    """Describe an attribute so that two descriptions agree only for values that compute alike."""
    if isinstance(value, bool | int | float | str | bytes | type(None) | type | torch.dtype | Enum):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_value(item) for item in value]
        return f"{type(value).__name__}[{', '.join(items if isinstance(value, list | tuple) else sorted(items))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, torch.Tensor):
        data = b"meta" if value.is_meta else value.reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(data).hexdigest()}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.shape} {value.dtype} {value.tobytes().hex()}"
    if isinstance(value, functools.partial):
        return f"partial {_value(value.func)} {_value(value.args)} {_value(value.keywords)}"
    if isinstance(value, MethodType):
        return f"method {_value(value.__func__)}"
    if isinstance(value, PreTrainedConfig):
        return hashlib.sha256(repr(sorted(value.to_dict().items())).encode()).hexdigest()
    # Of anything else only the same object is surely alike; then more layers are traced than need be.
    return f"{type(value).__qualname__} {id(value)}"
