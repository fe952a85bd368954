# SPDX-License-Identifier: Apache-2.0
"""Recurrences over tokens become one kernel of ONNX Runtime, LinearAttention, in place of a Scan.

The kernel takes heads side by side in the last axis, and shares keys and queries among the heads of a group as the
semantic ops do, so there is none that it cannot compute. It reads a state where it lies: only a call in which some row
starts anew copies the state, to clear that row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.semantic import domains

_CONTRIB = "com.microsoft"
_RULES = {"LinearRecurrence": "gated", "DeltaRecurrence": "gated_delta"}


def lower(graph: ir.Graph) -> None:
    """Replace every recurrence, in place.

    Args:
        graph: Without functions of layers, without slots.
    """
    lowering = _Lowering(graph)
    for node in list(graph):
        if node.domain == domains.SEMANTIC and node.op_type in _RULES:
            lowering.recurrence(node)


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A call of the kernel, but for its state: what it is given before and after that."""

    queries_keys_values: Sequence[ir.Value]
    decays_rates: Sequence[ir.Value | None]
    attributes: dict[str, int | float | str]

    def record(self, tape: Tape, state: ir.Value | None) -> Sequence[ir.Value]:
        """Add the call to a tape; return what is read after each token, and the last state."""
        given = [*self.queries_keys_values, state, *self.decays_rates]
        return tape.op_multi_out(
            "LinearAttention", given, self.attributes, num_outputs=2, domain=_CONTRIB
        )


@dataclass
class _Lowering:
    """State of one lowering: which rows start anew is found once."""

    graph: ir.Graph
    _starts: list[ir.Value] = field(default_factory=list)

    def recurrence(self, node: ir.Node) -> None:
        """Replace one recurrence."""
        state, log_decay, key, value, query, *beta = node.inputs
        heads, tape = node.attributes.get_int("heads", 0), Tape()
        flat = integers(tape, 0, 0, -1)
        packed = [tape.op("Reshape", [one, flat]) for one in (query, key, value, log_decay)]
        kernel = _Kernel(
            queries_keys_values=packed[:3],
            decays_rates=[packed[3], *beta],
            attributes={
                "q_num_heads": node.attributes.get_int("groups", 0),
                "kv_num_heads": heads,
                "scale": 1.0,
                "update_rule": _RULES[node.op_type],
            },
        )
        read, last = self._begin(tape, kernel, state, str(node.outputs[0].name))
        by_head = integers(tape, 0, 0, heads, -1)
        output = tape.op("Reshape", [read, by_head])
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], tape.nodes, node.outputs, [output, last]
        )

    def _begin(
        self, tape: Tape, kernel: _Kernel, state: ir.Value | None, name: str
    ) -> Sequence[ir.Value]:
        """Record a call on a state, copied only where a row of it is to be cleared."""
        before = state.producer() if state is not None else None
        if before is None or before.op_type != "StateBefore":
            return kernel.record(tape, state)
        past, positions = before.inputs
        some, rows = self._starting(positions)
        clearing, plain = Tape(), Tape()
        nothing = clearing.op("Constant", [], {"value_float": 0.0})
        cleared = clearing.op("Where", [rows, nothing, past])
        branches = {
            "then_branch": _branch(clearing, kernel.record(clearing, cleared), f"{name}.cleared"),
            "else_branch": _branch(plain, kernel.record(plain, past), f"{name}.plain"),
        }
        return tape.op_multi_out("If", [some], branches, num_outputs=2)

    def _starting(self, positions: ir.Value | None) -> list[ir.Value]:
        """Return whether any row starts at position 0, and which, (batch, 1, 1, 1)."""
        if not self._starts:
            tape = Tape()
            zero, last, axes = (integers(tape, *ints) for ints in ([0], [-1], [2, 3]))
            first = tape.op(
                "Cast", [tape.op("Equal", [positions, zero])], {"to": ir.DataType.INT64}
            )
            rows = tape.op("Unsqueeze", [tape.op("ReduceMax", [first, last]), axes])
            some = tape.op("ReduceMax", [first], {"keepdims": 0})
            self._starts = [
                tape.op("Cast", [value], {"to": ir.DataType.BOOL}) for value in (some, rows)
            ]
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._starts


def _branch(tape: Tape, outputs: Sequence[ir.Value], name: str) -> ir.Graph:
    """Make a branch of recorded nodes, whose names nothing else in the graph has."""
    values = [value for node in tape.nodes for value in node.outputs]
    for number, value in enumerate(values):
        value.name = f"{name}.{number}"
    for value in outputs:
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph([], outputs, nodes=tape.nodes, name=name)
