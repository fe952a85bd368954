# SPDX-License-Identifier: Apache-2.0
"""Conversion of GGUF's tensor names to those of the float model, and inverses of llama.cpp converters' changes.

The converters permute rows of queries and keys in some models, stack experts, split fused projections, and add one to
some norms. A model that layouts.json does not have is refused, since its changes are unknown.
Source: https://github.com/ggml-org/llama.cpp, conversion/*.py
"""

import json
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.checkpoint.expressions import concat, cut, index, reshape, stack, transpose
from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.rope import rope_scalings
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Numbers of heads; 1 if layers differ, or have none.

    Args:
        queries: Heads of queries.
        keys: Heads of keys and values.
        values: Value heads of linear attention.
        groups: Key heads of linear attention.
        size: Size of the key heads of linear attention.
    """

    queries: int = 1
    keys: int = 1
    values: int = 1
    groups: int = 1
    size: int = 1


#: Function from a stored tensor, its shape and numbers of heads to an expression of the float model's tensor.
Move = Callable[[Any, tuple[int, ...], Heads], Expression]
#: The same for two joined tensors: from their names and shapes, and numbers of heads.
Join = Callable[[str, str, tuple[int, ...], tuple[int, ...], Heads], Expression]

#: Factors of RoPE, which the configuration has too.
_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _as_stored(name: Expression, *_: Any) -> Expression:
    return name


def _query_rows(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    return _halves(name, shape, heads.queries)


def _key_rows(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    return _halves(name, shape, heads.keys)


def _halves(name: str, shape: tuple[int, ...], heads: int) -> Expression:
    """Restore the two halves of each head's rows, which are stored interleaved."""
    rows, *columns = shape
    pairs = reshape((heads, rows // heads // 2, 2, *columns), name)
    return reshape(shape, transpose(1, 2, pairs))


def _fused_by_heads(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    """Restore the groups of fused queries, keys and values, which are stored one after the other."""
    rows, *columns = shape
    size = max(1, rows // (heads.queries + 2 * heads.keys))
    ends = (0, heads.queries * size, (heads.queries + heads.keys) * size, rows)
    parts = [
        reshape((heads.keys, (stop - start) // (size * heads.keys), size, *columns), part)
        for start, stop in pairwise(ends)
        for part in [cut(0, start, stop, name)]
    ]
    return reshape(shape, concat(1, *parts))


def _transposed(name: str, shape: tuple[int, ...], _: Heads) -> Expression:
    return transpose(len(shape) - 2, len(shape) - 1, name)


def _as_one_row(name: str, shape: tuple[int, ...], _: Heads) -> Expression:
    return reshape((1, shape[-1]), name)


def _one_below_the_other(name: Expression, shape: tuple[int, ...], _: Heads) -> Expression:
    experts, rows, columns = shape
    return reshape((experts * rows, columns), name)


def _transposed_below(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    experts, rows, columns = shape
    turned = _transposed(name, shape, heads)
    return _one_below_the_other(turned, (experts, columns, rows), heads)


def _flat(name: str, shape: tuple[int, ...], _: Heads) -> Expression:
    return reshape((math.prod(shape),), name)


def _scalar(name: Expression, *_: Any) -> Expression:
    return index(0, name)


def _as_kernel(name: str, shape: tuple[int, ...], _: Heads) -> Expression:
    return reshape((math.prod(shape[:-1]), 1, shape[-1]), name)


def _as_column_of_heads(name: str, shape: tuple[int, ...], _: Heads) -> Expression:
    return reshape((1, 1, math.prod(shape), 1), name)


def _value_rows(name: Expression, shape: tuple[int, ...], heads: Heads) -> Expression:
    """Restore the order of value heads by their key head; they are stored in turns, one of each key head."""
    rows, *columns = shape
    each = heads.values // heads.groups
    turns = reshape((each, heads.groups, rows // (each * heads.groups), *columns), name)
    return reshape(shape, transpose(0, 1, turns))


def _values_behind_keys(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    keys = 2 * heads.groups * heads.size
    values = (shape[0] - keys, *shape[1:])
    moved = _value_rows(cut(0, keys, shape[0], name), values, heads)
    return concat(0, cut(0, 0, keys, name), moved)


def _kernel_of_values(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    return reshape((shape[0], 1, shape[-1]), _values_behind_keys(name, shape, heads))


def _value_columns(name: str, shape: tuple[int, ...], heads: Heads) -> Expression:
    rows, columns = shape
    each = heads.values // heads.groups
    turns = reshape((rows, each, heads.groups, columns // (each * heads.groups)), name)
    return reshape(shape, transpose(1, 2, turns))


def _one_after_the_other(gate: str, up: str, *_: Any) -> Expression:
    return concat(1, gate, up)


def _rows_one_after_the_other(gate: str, up: str, *_: Any) -> Expression:
    return concat(0, gate, up)


def _columns_one_after_the_other(gate: str, up: str, *_: Any) -> Expression:
    return transpose(1, 2, concat(1, gate, up))


def _latent_heads(
    keys: str, values: str, key_shape: tuple[int, ...], value_shape: tuple[int, ...], _: Heads
) -> Expression:
    """Join the rows of keys and values of each head; those of keys are stored transposed."""
    heads, rank, size = key_shape
    both = concat(1, transpose(1, 2, keys), values)
    return reshape((heads * (size + value_shape[1]), rank), both)


def _by_key_heads(
    heads_of: str, gate: str, shape: tuple[int, ...], gate_shape: tuple[int, ...], heads: Heads
) -> Expression:
    """Put queries, keys, values and gates of each key head beside each other."""
    columns, keys = shape[1], heads.groups * heads.size
    ends = (0, keys, 2 * keys, shape[0])
    parts = [cut(0, start, stop, heads_of) for start, stop in pairwise(ends)]
    sizes = (heads.size, heads.size, *[gate_shape[0] // heads.groups] * 2)
    grouped = [
        reshape((heads.groups, size, columns), part)
        for size, part in zip(sizes, [*parts, gate], strict=True)
    ]
    return reshape((shape[0] + gate_shape[0], columns), concat(1, *grouped))


def _in_turns(gate: str, up: str, shape: tuple[int, ...], *_: Any) -> Expression:
    experts, rows, *columns = shape
    both = reshape((experts, 2 * rows, *columns), stack(2, gate, up))
    return transpose(1, 2, both) if columns else both


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a model in llama.cpp.

    Args:
        architecture: Value of `general.architecture`.
        names: Names of the float model by GGUF's names without layer and `.weight`; "{}" is an expert's number. A name
            with `.weight` or `.bias` applies to that tensor alone, and its other name is complete.
        layers: Name for "blk"; with two stacks of layers, the name for each "blk" prefix, whose tensor names begin the
            same.
        moves: Changes of values, by name as above.
        joined: Name in the float model, both halves, and the function that joins them, by each half.
        plus_one: Norms that are stored plus one.
        unchanged: Names of norms that are stored as they are, though others are not.
        gated: Names that differ if MLPs have gates.
        also: Further values of `general.architecture`: the model's encoder alone, or the language model of a multimodal
            one.
        splits: Names of the queries, keys and values that one tensor has one after the other.
        by_layer: Names within a layer of parameters, by the metadata with one value for each layer.
        multiplied: Multipliers of the configuration that the weights contain already.
        changes: Further changes of values, by name: "logarithm".
    """

    architecture: str
    names: Mapping[str, str]
    layers: str | Mapping[str, str] = "model.layers"
    moves: Mapping[str, Move] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, str, str, Join]] = field(default_factory=dict)
    plus_one: bool = False
    unchanged: tuple[str, ...] = ()
    gated: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    by_layer: Mapping[str, str] = field(default_factory=dict)
    multiplied: tuple[str, ...] = ()
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every value of `general.architecture`."""
        return (self.architecture, *self.also)

    def change_of(self, leaf: str, stored: str) -> str | None:
        """Return the change of a stored tensor's values; None without one.

        Args:
            leaf: Name of the tensor within its layer.
            stored: Name in the float model.
        """
        if self.plus_one and stored.endswith("norm.weight") and leaf not in self.unchanged:
            return "minus one"
        return self.changes.get(leaf)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Tensors of the float model, as expressions over GGUF's names.

    Args:
        values: Expressions by name.
        experts: Stack and index of an item in it, by name.
        changes: Change of a stored tensor's values: "minus one", "logarithm".
        beside: Tensors of draft layers, which the model itself does not have.
    """

    values: Mapping[str, Expression]
    experts: Mapping[str, tuple[str, int]]
    changes: Mapping[str, str]
    beside: frozenset[str] = frozenset()


_MOVES: Mapping[str, Move] = {
    "query rows": _query_rows,
    "key rows": _key_rows,
    "fused by heads": _fused_by_heads,
    "transposed": _transposed,
    "as one row": _as_one_row,
    "as kernel": _as_kernel,
    "as column of heads": _as_column_of_heads,
    "one below the other": _one_below_the_other,
    "transposed, one below the other": _transposed_below,
    "flat": _flat,
    "scalar": _scalar,
    "value rows": _value_rows,
    "values behind keys": _values_behind_keys,
    "kernel of values": _kernel_of_values,
    "value columns": _value_columns,
}
_JOINS: Mapping[str, Join] = {
    "one after the other": _one_after_the_other,
    "columns one after the other": _columns_one_after_the_other,
    "rows one after the other": _rows_one_after_the_other,
    "in turns": _in_turns,
    "latent heads": _latent_heads,
    "by key heads": _by_key_heads,
}


@cache
def _document() -> Mapping[str, Any]:
    """Return layouts.json."""
    path = Path(__file__).with_name("layouts.json")
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def unknown(name: str, architecture: str) -> UnsupportedModelError:
    """Return the error of a file whose layout is unknown, with the reason if there is one.

    Args:
        name: Name of the file.
        architecture: Value of `general.architecture`.
    """
    reason = _document()["refused"].get(architecture, "It is unknown.")
    known = {one for layout in layouts().values() for one in layout.architectures}
    return UnsupportedModelError(
        f"{name!r} is GGUF of architecture {architecture!r}, which is not read. {reason} Expected one of "
        f"{', '.join(sorted(known))}. Use the safetensors checkpoint."
    )


@cache
def layouts() -> Mapping[str, Layout]:
    """Return the known layouts by `model_type`, from layouts.json."""
    document = _document()
    return MappingProxyType(
        {kind: _layout(document["groups"], **model) for kind, model in document["models"].items()}
    )


def _layout(
    known: Mapping[str, Mapping[str, str]],
    groups: Sequence[str],
    names: Mapping[str, str] = MappingProxyType({}),
    moves: Mapping[str, str] = MappingProxyType({}),
    joined: Mapping[str, Sequence[str]] = MappingProxyType({}),
    also: Sequence[str] = (),
    **rest: Any,
) -> Layout:
    """Return the layout of an entry: groups of names, its own names, and functions by their names."""
    return Layout(
        names={
            **{name: value for group in groups for name, value in known[group].items()},
            **names,
        },
        moves={name: _MOVES[move] for name, move in moves.items()},
        joined={
            half: (name, *pair, _JOINS[join])
            for name, pairs in joined.items()
            for *pair, join in zip(*[iter(pairs)] * 3, strict=True)  # a name may have several
            for half in pair
        },
        also=tuple(also),
        **rest,
    )


#: Metadata of layers behind the model's own, which draft tokens.
DRAFT_LAYERS = "nextn_predict_layers"
#: Fields of configs with the number of layers.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_EXPERTS = 10_000
_BLOCK = re.compile(r"((?:enc\.|dec\.)?)blk\.(\d+)\.(.+)")


def architecture_of(name: str, metadata: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of a model's architecture.

    Args:
        name: Name of the file, for messages.
        metadata: Metadata of the file.

    Raises:
        UnsupportedModelError: The file has no model.
    """
    architecture = str(metadata.get("general.architecture"))[:64]
    kind = "mmproj" if architecture == "clip" else str(metadata.get("general.type", "model"))[:64]
    if kind == "mmproj":
        raise UnsupportedModelError(
            f"{name!r} is a GGUF file of type 'mmproj', a vision or audio projector. Expected the language model's own "
            "file. Give that one for texts; for images build the checkpoint of safetensors, which has them as well."
        )
    if kind != "model":
        raise UnsupportedModelError(
            f"{name!r} is a GGUF file of type {kind!r}. Expected the language model's own file. Give that one; an "
            "adapter is loaded as peft saves it."
        )
    return architecture


def layout_of(name: str, model_type: str, metadata: Mapping[str, Any]) -> Layout:
    """Return the layout of a file's model.

    Args:
        name: Name of the checkpoint, for messages.
        model_type: Model type of its configuration.
        metadata: Metadata of the file.

    Raises:
        CheckpointError: The configuration is of another architecture than the file.
        UnsupportedModelError: The file has no model, or its layout is unknown.
    """
    architecture = architecture_of(name, metadata)
    layout = layouts().get(model_type)
    if layout is None and architecture in _document()["refused"]:
        raise unknown(name, architecture)
    if layout is None:
        raise UnsupportedModelError(
            f"{name!r} is GGUF of architecture {architecture!r}, model_type {model_type!r}. Expected one of "
            f"{', '.join(sorted(layouts()))}, of which the arrangement in GGUF is known. Use the safetensors "
            "checkpoint."
        )
    if architecture not in layout.architectures:
        raise CheckpointError(
            f"{name!r} is GGUF of architecture {architecture!r}, but its configuration has model_type {model_type!r}, "
            f"which is {layout.architecture!r}. Expected the configuration of the model that it was made from. Name "
            "that with --config-from."
        )
    return layout


def places_of(
    name: str,
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
) -> Places:
    """Return the name of every tensor in the float model.

    Args:
        name: Name of the checkpoint, for messages.
        config: config.json of the float model.
        metadata: Metadata of the file.
        tensors: Tensors of the file, by name.

    Raises:
        CheckpointError: The configuration, or a tensor's shape, does not fit.
        UnsupportedModelError: A tensor has no counterpart there.
    """
    layout = layout_of(name, str(config["model_type"]), metadata)
    _require_rope(name, config, tensors)
    _require_neutral(name, config, layout.multiplied)
    architecture = architecture_of(name, metadata)
    kinds = config.get("layers_block_type") or ()
    layers = next((config[key] for key in _LAYERS if key in config), len(kinds))
    names = layout.names
    if any(".ffn_gate." in one for one in tensors):
        names = {**names, **layout.gated}
    file = _File(
        name=name,
        tensors=tensors,
        layout=layout,
        names=names,
        heads=_heads(name, architecture, metadata),
        layers={"": layers, "enc.": layers, "dec.": config.get("num_decoder_layers") or layers},
        drafts=metadata.get(f"{architecture}.{DRAFT_LAYERS}", 0),
    )
    values: dict[str, Expression] = {}
    experts: dict[str, tuple[str, int]] = {}
    changes: dict[str, str] = {}
    beside: set[str] = set()
    lost: list[str] = []
    for info in tensors.values():
        if info.name in _ROPE:
            continue
        tensor = file.tensor(info)
        if tensor.drafts:
            beside.add(info.name)
            continue
        parts = next(filter(None, (rule(file, tensor) for rule in _RULES)), None)
        if parts is not None:
            values |= parts
        elif tensor.place is None or not tensor.inside or tensor.prefix + tensor.place in values:
            lost.append(info.name)
        elif "{}" in tensor.place:
            experts |= file.stack(tensor)
        else:
            values[tensor.prefix + tensor.place] = file.moved(tensor)
            if change := layout.change_of(tensor.leaf, tensor.place):
                changes[info.name] = change
    if lost:
        raise UnsupportedModelError(
            f"{name!r} has {len(lost)} tensors that model_type {config['model_type']!r} has no place for: "
            f"{some([repr(entry) for entry in lost], 10)}. Expected every tensor to have one. Use the safetensors "
            "checkpoint."
        )
    return Places(values=values, experts=experts, changes=changes, beside=frozenset(beside))


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """Tensor of a file.

    Args:
        info: Name and shape.
        leaf: Name within its layer, or the whole name outside of layers.
        prefix: Name of its layer in the float model, with a dot at its end; empty outside of layers.
        place: Name within the layer in the float model; None if the layout has none.
        inside: Whether the model has its layer.
        drafts: Whether its layer is a draft layer behind the model's own.
    """

    info: TensorInfo
    leaf: str
    prefix: str
    place: str | None
    inside: bool = True
    drafts: bool = False


@dataclass(frozen=True, kw_only=True)
class _File:
    """Tensors of a file, with the layout of its model.

    Args:
        name: Name of the checkpoint, for messages.
        tensors: Tensors by name.
        layout: Layout of the model.
        names: Names of the float model by those of the file.
        heads: Numbers of heads.
        layers: Number of layers by the beginning of a stack's names.
        drafts: Number of draft layers.
    """

    name: str
    tensors: Mapping[str, TensorInfo]
    layout: Layout
    names: Mapping[str, str]
    heads: Heads
    layers: Mapping[str, int]
    drafts: int

    def tensor(self, info: TensorInfo) -> _Tensor:
        """Return a tensor with its location in the file."""
        block = _BLOCK.fullmatch(info.name)
        if not block:
            return _Tensor(info=info, leaf=info.name, prefix="", place=_name(info.name, self.names))
        begins, number, leaf = block.groups()
        layer, count = int(number), self.layers[begins]
        return _Tensor(
            info=info,
            leaf=begins + leaf,
            prefix=f"{_stack_of(self.layout, begins)}.{number}.",
            place=_name(begins + leaf, self.names),
            inside=layer < count,
            drafts=count <= layer < count + self.drafts,
        )

    def joined(self, tensor: _Tensor) -> Mapping[str, Expression]:
        """Return the tensor that two halves make, by its name; none for a tensor that is no half."""
        pair = self.layout.joined.get(tensor.leaf) if tensor.inside else None
        if pair is None:
            return {}
        whole, *halves, join = pair
        layer = tensor.info.name.removesuffix(tensor.leaf)
        if not {layer + half for half in halves} <= self.tensors.keys():
            return {}
        first, second = (self.tensors[layer + half] for half in halves)
        value = join(first.name, second.name, first.shape, second.shape, self.heads)
        return {tensor.prefix + whole: value}

    def by_layer(self, tensor: _Tensor) -> Mapping[str, Expression]:
        """Return the parameters of all layers in a tensor, by name."""
        if tensor.leaf not in self.layout.by_layer:
            return {}
        leaf, layers = tensor.leaf, self.layers[""]
        if tensor.info.shape != (layers,):
            what = f"{leaf} of shape {list(tensor.info.shape)}"
            raise _misfit(self.name, what, f"{layers} values")
        move: Move = self.layout.moves.get(leaf, _as_stored)
        return {
            f"{self.layout.layers}.{layer}.{self.layout.by_layer[leaf]}": move(
                cut(0, layer, layer + 1, leaf), (1,), self.heads
            )
            for layer in range(layers)
        }

    def split(self, tensor: _Tensor) -> Mapping[str, Expression]:
        """Return the queries, keys and values in a tensor, by name."""
        stem, _, kind = tensor.leaf.rpartition(".")
        if not tensor.inside or stem not in self.layout.splits:
            return {}
        parts = _split(tensor.info.name, tensor.info.shape[0], self.heads)
        names = [f"{tensor.prefix}{name}.{kind}" for name in self.layout.splits[stem]]
        return dict(zip(names, parts, strict=True))

    def stack(self, tensor: _Tensor) -> Mapping[str, tuple[str, int]]:
        """Return the matrices of experts in a stack: its name, and the index of each."""
        info, name = tensor.info, str(tensor.place)
        if len(info.shape) != 3 or info.shape[0] > _MOST_EXPERTS:
            what = f"tensor {info.name!r} is {list(info.shape)}"
            raise _misfit(self.name, what, "a stack of matrices")
        return {tensor.prefix + name.format(i): (info.name, i) for i in range(info.shape[0])}

    def moved(self, tensor: _Tensor) -> Expression:
        """Return a tensor of the float model, which the file has by itself."""
        info, moves = tensor.info, self.layout.moves
        stem = tensor.leaf.rpartition(".")[0]
        move: Move = moves.get(tensor.leaf) or moves.get(stem, _as_stored)
        return move(info.name, info.shape, self.heads)


#: Rules for tensors without a counterpart of their own, in their order.
_RULES = (_File.joined, _File.by_layer, _File.split)


def _split(name: str, rows: int, heads: Heads) -> list[Expression]:
    """Return the rows of queries, keys and values of a tensor."""
    size = rows // (heads.queries + 2 * heads.keys)
    ends = (0, heads.queries * size, (heads.queries + heads.keys) * size, rows)
    return [cut(0, start, stop, name) for start, stop in pairwise(ends)]


def _stack_of(layout: Layout, begins: str) -> str | None:
    """Return the name for "blk" in a stack of layers; None if the model has no such stack."""
    if isinstance(layout.layers, str):
        return None if begins else layout.layers
    return layout.layers.get(begins)


def _name(leaf: str, names: Mapping[str, str]) -> str | None:
    """Return the name in the float model for a name within a layer, or outside of layers."""
    if leaf in names:
        return names[leaf]
    stem, dot, kind = leaf.rpartition(".")
    return names[stem] + dot + kind if stem in names and kind in ("weight", "bias") else None


#: Metadata with numbers of heads, by field of `Heads`.
_COUNTS = {
    "queries": "attention.head_count",
    "keys": "attention.head_count_kv",
    "values": "ssm.time_step_rank",
    "groups": "ssm.group_count",
    "size": "ssm.state_size",
}


def _heads(name: str, architecture: str, metadata: Mapping[str, Any]) -> Heads:
    """Return the numbers of heads; of values by layer, the largest."""
    numbers = {field: metadata.get(f"{architecture}.{key}") for field, key in _COUNTS.items()}
    if numbers["keys"] is None:
        numbers["keys"] = numbers["queries"]
    counts = {
        field: max(number, default=1) if isinstance(number, array) else number or 1
        for field, number in numbers.items()
    }
    if not all(type(count) is int and 0 < count < 1 << 16 for count in counts.values()):
        raise _misfit(name, f"{[*counts.values()]} heads", "numbers of heads")
    return Heads(**counts)


def _require_rope(name: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse RoPE factors that the configuration lacks, since they would not be applied."""
    scaled = {"llama3", "longrope", "proportional", "su", "yarn"}
    types = {scaling.get("rope_type") or scaling.get("type") for scaling in rope_scalings(config)}
    if (factors := [one for one in _ROPE if one in tensors]) and not types & scaled:
        raise CheckpointError(
            f"{name!r} has {factors[0]!r}, factors of RoPE, of which its configuration says nothing. Expected a "
            "`rope_scaling` there. Name the original checkpoint, which has one, with --config-from."
        )


def _require_neutral(name: str, config: Mapping[str, Any], multipliers: Sequence[str]) -> None:
    """Refuse multipliers that the weights contain already, since they would be applied twice."""
    neutral = {key: config.get(key) for key in multipliers}
    lists = {key: value if isinstance(value, list) else [value] for key, value in neutral.items()}
    if odd := [f"{key} {neutral[key]}" for key, values in lists.items() if {*values} - {None, 1}]:
        raise CheckpointError(
            f"{name!r} contains the multipliers of its model in its weights, and its configuration sets "
            f"{some(odd)}. Expected multipliers of 1. Remove the config.json beside the file, or --config-from: the "
            "file's metadata make a configuration."
        )


def _misfit(name: str, what: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{name!r}, a GGUF file, has {what}. Expected {expected}. Get the file again from its source."
    )
