# SPDX-License-Identifier: Apache-2.0
"""Tokens whose logits a call returns are picked before the last layer's products, and not after them.

A trace picks them before the head. Behind the last attention nothing depends on other tokens, so its projection, the
feed-forward network and the norms are computed for the picked tokens alone: a prompt costs nearly a layer less.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import array_of
from qeff_zoo.graph.semantic.domains import SEMANTIC

_END = (1 << 31) - 1  # of a slice up to the end
#: Ops by the number of their first inputs that have tokens; their other inputs are the same for all tokens of a row.
_LEADING = {
    **dict.fromkeys([(SEMANTIC, "Linear"), (SEMANTIC, "RMSNorm")], 1),
    **dict.fromkeys([("", "LayerNormalization"), ("", "CastLike")], 1),
    (SEMANTIC, "Lora"): 2,
}
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "Pow"),
        *("Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"),
    )
)
#: Ranks of the values (batch, seq, …).
_Ranks: TypeAlias = Mapping[ir.Value, int]


def pick_early(graph: ir.Graph) -> int:
    """Move every pick of tokens to where tokens are mixed last, in place.

    Args:
        graph: Without functions of layers, in the order of its computation.

    Returns:
        Number of products that are computed for the picked tokens alone.
    """
    picks = {node: columns for node in graph if (columns := _columns(node)) is not None}
    ranks = _ranks(graph) if picks else {}
    return sum(_move(graph, pick, columns, ranks) for pick, columns in picks.items())


def _columns(node: ir.Node) -> ir.Value | None:
    """Return the columns (batch, picked, 1) that a node picks of (batch, seq, size); None for another node."""
    if node.op_type != "GatherElements" or node.attributes.get_int("axis", 0) != 1:
        return None
    spread = _producer(node.inputs[1])
    columns = spread.inputs[0] if spread and spread.op_type == "Expand" else None
    column = _producer(columns)
    if column is None or column.op_type != "Unsqueeze":
        return None
    return columns if _numbers(column.inputs[1]) in ([2], [-1]) else None


def _move(graph: ir.Graph, pick: ir.Node, columns: ir.Value, ranks: _Ranks) -> int:
    """Pick the inputs of what computes each token by itself, in place of its result."""
    later = _computed_by_token(graph, pick, ranks)
    products = sum(node.op_type == "Linear" for node in later)
    if not products:
        return 0
    tape, picked = Tape(), dict[ir.Value, ir.Value]()
    for node, tokens in later.items():
        for value in dict.fromkeys(tokens):
            if value.producer() in later:
                continue
            if value not in picked:
                picked[value] = tape.op("GatherND", [value, columns], {"batch_dims": 1})
                picked[value].type = value.type
            for index in [place for place, one in enumerate(node.inputs) if one is value]:
                node.replace_input_with(index, picked[value])
    shape = pick.outputs[0].shape
    for output in (output for node in later for output in node.outputs):
        sizes = output.shape
        output.shape = ir.Shape([*shape[:2], *sizes[2:]]) if shape and sizes else None
    result = pick.inputs[0]
    assert result is not None
    ir.convenience.replace_all_uses_with(pick.outputs[0], result)
    graph.insert_before(pick, tape.nodes)
    graph.remove(pick, safe=True)
    graph.sort()
    return products


def _computed_by_token(
    graph: ir.Graph, pick: ir.Node, ranks: _Ranks
) -> dict[ir.Node, Sequence[ir.Value]]:
    """Return the nodes that compute each token by itself, for a pick alone, with their inputs (batch, seq, size)."""
    nodes: dict[ir.Node, Sequence[ir.Value]] = {}
    for node in reversed(graph):
        users = {use.node for value in node.outputs for use in value.uses()}
        if not users or not users <= {pick, *nodes}:
            continue
        if any(ranks.get(value) != 3 or value.is_graph_output() for value in node.outputs):
            continue
        if tokens := _tokens(node, ranks):
            nodes[node] = tokens
    return nodes


def _ranks(graph: ir.Graph) -> _Ranks:
    """Find the values (batch, seq, …), forwards from the inputs; their other sizes may be unknown."""
    ranks = {
        value: len(value.shape)
        for value in graph.inputs
        if value.shape and [str(size) for size in value.shape[:2]] == ["batch_size", "seq_len"]
    }
    for node in graph:
        if _is_lookup(node, ranks) or _is_joined(node, ranks):
            ranks[node.outputs[0]] = 3
        elif tokens := _tokens(node, ranks):
            ranks |= dict.fromkeys(node.outputs, ranks[tokens[0]])
    return ranks


def _tokens(node: ir.Node, ranks: _Ranks) -> Sequence[ir.Value]:
    """Return the inputs (batch, seq, …) of a node that computes each token by itself; none for another node."""
    if (node.domain, node.op_type) in _LEADING:
        given = node.inputs[: _LEADING[node.domain, node.op_type]]
        if node.op_type == "LayerNormalization" and node.attributes.get_int("axis", -1) != -1:
            return ()
    elif not node.domain and node.op_type in _ELEMENTWISE:
        given = [
            value for value in node.inputs if value is not None and not _is_same_for_all(value)
        ]
    elif _is_whole(node) or _is_within_tokens(node):
        given = node.inputs[:1]
    else:
        return ()
    tokens = [value for value in given if value is not None and value in ranks]
    ranked = {ranks[value] for value in tokens}
    is_of_tokens = len(tokens) == len(given) and len(ranked) == 1
    return tokens if is_of_tokens and (ranked == {3} or not _is_within_tokens(node)) else ()


def _is_same_for_all(value: ir.Value) -> bool:
    """Whether a value is a constant that is the same for all tokens."""
    array = None if value.is_initializer() else array_of(value)
    sizes = [*(value.shape or ())] if array is None else [*array.shape]
    is_constant = value.is_initializer() or array is not None
    return is_constant and len(sizes) <= 3 and all(size == 1 for size in sizes[:-1])


def _is_lookup(node: ir.Node, ranks: _Ranks) -> bool:
    """Whether a node looks up a row of a table for each token."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return False
    table, index = node.inputs
    is_table = table is not None and table.is_initializer() and len(table.shape or ()) == 2
    return is_table and index is not None and ranks.get(index) == 2


def _is_joined(node: ir.Node, ranks: _Ranks) -> bool:
    """Whether a node makes (batch, seq, size) of heads, by the batch and the length of the call."""
    sizes = _producer(node.inputs[1]) if node.op_type == "Reshape" else None
    if sizes is None or sizes.op_type != "Concat" or len(sizes.inputs) != 3:
        return False
    return all(_is_size(sizes.inputs[axis], axis, ranks) for axis in (0, 1))


def _is_size(value: ir.Value | None, axis: int, ranks: _Ranks) -> bool:
    """Whether a value is the size of an axis of values (batch, seq, …)."""
    node = _producer(value)
    while node is not None and node.op_type in ("Cast", "Reshape", "Squeeze", "Unsqueeze"):
        node = _producer(node.inputs[0])
    if node is None or node.op_type != "Shape" or node.inputs[0] not in ranks:
        return False
    ends = [node.attributes.get_int(name, 0) for name in ("start", "end")]
    return ends == [axis, axis + 1]


def _is_within_tokens(node: ir.Node) -> bool:
    """Whether a node takes parts of the last axis, or its mean."""
    if node.domain or node.op_type not in ("ReduceMean", "Slice", "Split"):
        return False
    if node.op_type == "Split":
        return node.attributes.get_int("axis", 0) == -1
    axes = _numbers(_input(node, 1 if node.op_type == "ReduceMean" else 3))
    return axes == [-1] and node.attributes.get_int("keepdims", 1) == 1


def _is_whole(node: ir.Node) -> bool:
    """Whether a node is a slice of all of its input, as that of the last 0 tokens in transformers."""
    if node.op_type != "Slice":
        return False
    starts, ends = (_numbers(value) for value in node.inputs[1:3])
    steps = _numbers(_input(node, 4)) or [1]
    return not any(starts or [1]) and min(ends or [0]) >= _END and set(steps) == {1}


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _numbers(value: ir.Value | None) -> list[int] | None:
    array = array_of(value)
    return None if array is None else np.ravel(array).tolist()


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
