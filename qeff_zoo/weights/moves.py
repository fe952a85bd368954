# SPDX-License-Identifier: Apache-2.0
"""What a graph computes of weights alone by moving their numbers: transposed, reshaped, cut, picked, joined."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.constants import array_of, tensor_of


@dataclass(frozen=True)
class Moved:
    """A value that is made of weights.

    Args:
        name: Name of the weight and, after colons, of each move: `model.layers.3.mlp.up_proj.weight:transposed`.
        expression: Value of the tensor.
        shape: Lengths of its axes.
    """

    name: str
    expression: Expression
    shape: tuple[int, ...]


Known: TypeAlias = Mapping[ir.Value, Moved]


def moved(node: ir.Node, known: Known) -> list[Moved]:
    """Return what a node's outputs are made of; nothing if it does more than to move numbers of weights.

    Args:
        node: Node of a graph.
        known: Expressions of its inputs that are made of weights.
    """
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    first = node.inputs[0] if node.inputs else None
    if rule is None or first is None or first not in known:
        return []
    return rule(node, known[first], known) or []


def _constant(node: ir.Node, place: int) -> list[int] | None:
    """Return integers that are given to a node as a constant."""
    array = array_of(node.inputs[place] if place < len(node.inputs) else None)
    return None if array is None else np.atleast_1d(array).tolist()


def _same(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    return [x]


def _transpose(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    rank = len(x.shape)
    order = list(node.attributes.get_ints("perm", range(rank)[::-1]))
    expression, now = x.expression, list(range(rank))
    for axis, wanted in enumerate(order):
        place = now.index(wanted)
        expression = expressions.transpose(axis, place, expression)
        now[axis], now[place] = now[place], now[axis]
    name = "transposed" if order == list(range(rank))[::-1] else f"transposed{order}"
    return [Moved(f"{x.name}:{name}", expression, tuple(x.shape[axis] for axis in order))]


def _reshaped(x: Moved, shape: tuple[int, ...]) -> list[Moved]:
    named = "x".join(map(str, shape)) or "scalar"
    return [Moved(f"{x.name}:{named}", expressions.reshape(shape, x.expression), shape)]


def _reshape(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    given = _constant(node, 1)
    if given is None:
        return None
    shape = [x.shape[i] if size == 0 else size for i, size in enumerate(given)]
    if -1 in shape:
        shape[shape.index(-1)] = math.prod(x.shape) // -math.prod(shape)
    return _reshaped(x, tuple(shape))


def _unsqueeze(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    axes = _constant(node, 1)
    if axes is None:
        return None
    rank, left = len(x.shape) + len(axes), iter(x.shape)
    at = {axis % rank for axis in axes}
    return _reshaped(x, tuple(1 if axis in at else next(left) for axis in range(rank)))


def _squeeze(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    axes = _constant(node, 1)
    if axes is None:
        return None
    at = {axis % len(x.shape) for axis in axes}
    return _reshaped(x, tuple(size for axis, size in enumerate(x.shape) if axis not in at))


def _cut(x: Moved, axis: int, start: int, stop: int) -> Moved:
    shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
    if shape == x.shape:
        return x
    name = f"{x.name}:{start}-{stop}" if axis == 0 else f"{x.name}:{axis}:{start}-{stop}"
    return Moved(name, expressions.cut(axis, start, stop, x.expression), shape)


def _slice(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    starts, stops = _constant(node, 1), _constant(node, 2)
    axes = _constant(node, 3) if len(node.inputs) > 3 else list(range(len(starts or ())))
    steps = _constant(node, 4) if len(node.inputs) > 4 else [1]
    if starts is None or stops is None or axes is None or set(steps or [0]) != {1}:
        return None
    for start, stop, axis in zip(starts, stops, axes, strict=True):
        axis %= len(x.shape)
        first, last, _ = slice(start, stop).indices(x.shape[axis])
        if first >= last:
            return None
        x = _cut(x, axis, first, last)
    return [x]


def _gather(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    index = tensor_of(node.inputs[1])
    if index is None or index.shape.rank() or node.attributes.get_int("axis", 0):
        return None
    number = int(index.numpy()) % x.shape[0]
    return [Moved(f"{x.name}:{number}", expressions.index(number, x.expression), x.shape[1:])]


def _split(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    sizes = _constant(node, 1)
    if sizes is None and len(node.inputs) > 1:
        return None
    if sizes is None:
        each = -(-x.shape[axis] // len(node.outputs))
        starts = [each * i for i in range(len(node.outputs))]
        sizes = [min(each, x.shape[axis] - start) for start in starts]
    ends = np.cumsum(sizes).tolist()
    return [_cut(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _concat(node: ir.Node, x: Moved, known: Known) -> list[Moved] | None:
    parts = [known[value] for value in node.inputs if value is not None and value in known]
    if len(parts) < len(node.inputs):
        return None
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    size = sum(part.shape[axis] for part in parts)
    joined = expressions.concat(axis, *(part.expression for part in parts))
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return [replace(x, name="+".join(p.name for p in parts), expression=joined, shape=shape)]


_RULES: Mapping[str, Callable[[ir.Node, Moved, Known], list[Moved] | None]] = {
    "Identity": _same,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Concat": _concat,
}
