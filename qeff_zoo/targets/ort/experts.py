# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts with quantized matrices become one kernel of ONNX Runtime, QMoE, others products of routed tokens.

Both ways a token reads the weights of its own experts, not of all. The kernel takes gates and ups in turns, sizes that
are multiples of the blocks, and the shares of the experts as they were computed outside of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.passes import experts as experts_pass
from qeff_zoo.semantic.op import UNBOUNDED
from qeff_zoo.targets.ort import routing
from qeff_zoo.weights import expressions
from qeff_zoo.weights.expressions import Expression

_CONTRIB = "com.microsoft"
_FLOAT = "the kernel has no float32 matrices"
_UNSTORED = "their matrices are not stored as they are used"


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How stacks of matrices are quantized.

    Args:
        bits: 4 or 8.
        block_size: Columns that share a scale.
        accuracy_level: As of MatMulNBits.
        pack: Name, value (experts, outputs, inputs), experts, outputs, inputs -> the packed matrices, their scales and,
            of 4 bits, zero points.
    """

    bits: int
    block_size: int
    accuracy_level: int
    pack: Callable[[str, Expression, int, int, int], list[ir.Value]]


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
        bindings: What those are made of.
        packing: Of quantized matrices; None for float32 ones.

    Returns:
        How blocks are computed, in words, and how many each way.
    """
    others = _FLOAT if packing is None else "the kernel computes none of their kind"
    reasons = {node.inputs[1]: others for node in graph if experts_pass.is_routed_product(node)}
    ways: Counter[str] = Counter()
    for node in [node for node in graph if experts_pass.is_experts(node)]:
        names = [weights[one] for one in _matrices(node) if one in weights]
        reason = _reason(node, names, packing)
        if reason or packing is None:
            reasons[node.inputs[1]] = reason
            experts_pass.take_apart(graph, node)
        else:
            _fuse(graph, node, names, bindings, packing)
            ways["native"] += 1
    left = routing.lower(graph, weights)
    for router, reason in reasons.items():
        given, since = ("all", _UNSTORED) if router in left else ("its own", reason)
        ways[f"by expert, each on {given} tokens, since {since}"] += 1
    return ways


def _reason(node: ir.Node, names: list[str], packing: Packing | None) -> str:
    """Say why the kernel cannot compute a block; nothing if it can."""
    if packing is None:
        return _FLOAT
    if len(names) < 2:
        return _UNSTORED
    _, hidden, inner = _sizes(node)
    if hidden % packing.block_size or inner % packing.block_size:
        return f"{hidden} and {inner} are no multiples of the blocks of {packing.block_size}"
    return ""


def _matrices(node: ir.Node) -> list[ir.Value]:
    """Return the stacks of gates and ups, and of downs."""
    places = (3, 5) if experts_pass.is_interleaved(node) else (3, 4)
    found = [node.inputs[place] for place in places]
    return [one for one in found if one is not None]


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
    bindings: Mapping[str, Expression],
    packing: Packing,
) -> None:
    count, hidden, inner = _sizes(node)
    gate_up, down = (bindings[name] for name in names)
    biases: list[ir.Value | None] = [None, None]
    if experts_pass.is_interleaved(node):
        gate_up, down = (expressions.transpose(1, 2, one) for one in (gate_up, down))
        biases = [node.inputs[4], node.inputs[6]]
    else:
        gate_up = _in_turns(gate_up, count, inner, hidden)
    first = packing.pack(names[0], gate_up, count, 2 * inner, hidden)
    second = packing.pack(names[1], down, count, hidden, inner)
    tape = Tape()
    chosen, share = experts_pass.shares(tape, node)
    given = [node.inputs[0], chosen, *first[:2], biases[0], *second[:2], biases[1]]
    attributes: dict[str, int | float | str] = {
        "activation_type": "swiglu",
        "swiglu_fusion": 1,  # in turns
        "activation_alpha": node.attributes.get_float("alpha", 1.0),
        "activation_beta": node.attributes.get_float("offset", 0.0),
        "k": node.attributes.get_int("k", 0),
        "expert_weight_bits": packing.bits,
        "block_size": packing.block_size,
        "accuracy_level": packing.accuracy_level,
        "weights_prepacked": 0,
    }
    limit = node.attributes.get_float("limit", UNBOUNDED)
    if limit < UNBOUNDED:
        attributes["swiglu_limit"] = limit
    third: list[ir.Value | None] = [None] * 3
    zero_points = [first[2], second[2], None] if packing.bits == 4 else [None] * 3
    mixed = tape.op("QMoE", [*given, *third, *zero_points, share], attributes, domain=_CONTRIB)
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [mixed])


def _in_turns(gate_up: Expression, count: int, inner: int, hidden: int) -> Expression:
    """Put the rows of gates and ups (experts, 2 * inner, hidden) in turns."""
    turned = []
    for number in range(count):
        both = expressions.index(number, gate_up)
        gate, up = (expressions.cut(0, start, start + inner, both) for start in (0, inner))
        turned.append(expressions.reshape((2 * inner, hidden), expressions.stack(1, gate, up)))
    return expressions.stack(0, *turned)
