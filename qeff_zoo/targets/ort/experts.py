# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts with quantized matrices become one kernel of ONNX Runtime, QMoE, others products of routed tokens.

Either way a token reads the weights of its own experts only. The kernel takes gates and ups interleaved, sizes that are
multiples of the blocks, and the routing weights as they were computed outside of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.numerics import Format
from qeff_zoo.graph.passes import experts as experts_pass
from qeff_zoo.graph.semantic.op import UNBOUNDED

from . import routing

_CONTRIB = "com.microsoft"
_FLOAT, _UNSTORED, _SIZES, _KIND, _FORMATS = "float32", "not_stored", "sizes", "kind", "formats"
_STACKS, _BITS = 2, (4, 8)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How stacks of matrices are quantized.

    Args:
        format_of: Name and value -> the format of such matrices, and whether the checkpoint stores them so.
        accuracy_level: Attribute of MatMulNBits.
        pack: Name, value (experts, outputs, inputs), experts, outputs, inputs, and whether the weight is input-major ->
            the packed matrices, their scales and zero points, if the format has any.
    """

    format_of: Callable[[str, Expression], tuple[Format, bool]]
    accuracy_level: int
    pack: Callable[[str, Expression, int, int, int, bool], list[ir.Value]]


def lower(
    graph: ir.Graph,
    weights: Mapping[ir.Value, str],
    bindings: Mapping[str, Expression],
    packing: Packing | None,
) -> Counter[str]:
    """Replace every block of experts, in place: by the kernel where it can, else by products of each one's own tokens.

    Args:
        graph: Without functions of layers.
        weights: Names of the values that are weights.
        bindings: Expressions of the initializers.
        packing: Packing of quantized matrices; None for float32 ones.

    Returns:
        How blocks are computed, by codes of `qeff_zoo.targets.ort.WAYS`, and how many each way.
    """
    others = _FLOAT if packing is None else _KIND
    reasons = {node.inputs[1]: others for node in graph if experts_pass.is_routed_product(node)}
    ways: Counter[str] = Counter()
    for node in [node for node in graph if experts_pass.is_experts(node)]:
        names = [weights[matrix] for matrix in _matrices(node) if matrix in weights]
        values = _values(node, names, bindings) if packing and len(names) == _STACKS else []
        reason = _reason(node, names, values, packing)
        if reason or packing is None:
            reasons[node.inputs[1]] = reason
            experts_pass.take_apart(graph, node)
        else:
            _fuse(graph, node, names, values, packing)
            ways["native"] += 1
    left = routing.lower(graph, weights)
    for router, reason in reasons.items():
        ways[f"all_tokens:{_UNSTORED}" if router in left else f"own_tokens:{reason}"] += 1
    return ways


def _reason(
    node: ir.Node, names: list[str], values: list[Expression], packing: Packing | None
) -> str:
    """Return a word for why the kernel cannot compute a block; empty if it can."""
    if packing is None:
        return _FLOAT
    if not values:
        return _UNSTORED
    (format, _), (other, _) = map(packing.format_of, names, values)
    if format.is_float and other.is_float:
        return _FLOAT
    if format != other or format.bits not in _BITS or format.offsets or format.act_order:
        return _FORMATS
    _, hidden, inner = _sizes(node)
    return _SIZES if hidden % format.block or inner % format.block else ""


def _values(
    node: ir.Node, names: list[str], bindings: Mapping[str, Expression]
) -> list[Expression]:
    """Return what the kernel takes: gates and ups, interleaved, and downs, each (experts, outputs, inputs)."""
    gate_up, down = (bindings[name] for name in names)
    if experts_pass.is_interleaved(node):
        return [expressions.transpose(1, 2, one) for one in (gate_up, down)]
    count, hidden, inner = _sizes(node)
    return [_interleaved(gate_up, count, inner, hidden), down]


def _matrices(node: ir.Node) -> list[ir.Value]:
    """Return the stacks of gates and ups, and of downs."""
    indices = (3, 5) if experts_pass.is_interleaved(node) else (3, 4)
    matrices = [node.inputs[place] for place in indices]
    return [matrix for matrix in matrices if matrix is not None]


def _sizes(node: ir.Node) -> tuple[int, int, int]:
    """Return the number of experts, the hidden and the intermediate size."""
    down = _matrices(node)[1].shape
    assert down is not None
    experts, first, second = (int(dim) for dim in down)  # type: ignore[arg-type]
    return (
        (experts, second, first) if experts_pass.is_interleaved(node) else (experts, first, second)
    )


def _fuse(
    graph: ir.Graph,
    node: ir.Node,
    names: list[str],
    values: list[Expression],
    packing: Packing,
) -> None:
    count, hidden, inner = _sizes(node)
    gate_up, down = values
    format, _ = packing.format_of(names[1], down)
    input_major = experts_pass.is_interleaved(node)
    biases = [node.inputs[4], node.inputs[6]] if input_major else [None, None]
    first = packing.pack(names[0], gate_up, count, 2 * inner, hidden, input_major)
    second = packing.pack(names[1], down, count, hidden, inner, input_major)
    tape = Tape()
    chosen, routed = experts_pass.routing_weights(tape, node)
    given = [node.inputs[0], chosen, *first[:2], biases[0], *second[:2], biases[1]]
    attributes: dict[str, int | float | str] = {
        "activation_type": "swiglu",
        "swiglu_fusion": 1,  # interleaved
        "activation_alpha": node.attributes.get_float("alpha", 1.0),
        "activation_beta": node.attributes.get_float("offset", 0.0),
        "k": node.attributes.get_int("k", 0),
        "expert_weight_bits": format.bits,
        "block_size": format.block,
        "accuracy_level": packing.accuracy_level,
        "weights_prepacked": 0,
    }
    limit = node.attributes.get_float("limit", UNBOUNDED)
    if limit < UNBOUNDED:
        attributes["swiglu_limit"] = limit
    third: list[ir.Value | None] = [None] * 3
    zero_points = [first[2], second[2], None] if format.zero_points else [None] * 3
    mixed = tape.op("QMoE", [*given, *third, *zero_points, routed], attributes, domain=_CONTRIB)
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [mixed])


def _interleaved(gate_up: Expression, count: int, inner: int, hidden: int) -> Expression:
    """Interleave the rows of gates and ups (experts, 2 * inner, hidden)."""
    experts = []
    for number in range(count):
        both = expressions.index(number, gate_up)
        gate, up = (expressions.cut(0, start, start + inner, both) for start in (0, inner))
        experts.append(expressions.reshape((2 * inner, hidden), expressions.stack(1, gate, up)))
    return expressions.stack(0, *experts)
