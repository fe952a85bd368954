# SPDX-License-Identifier: Apache-2.0
"""Heads of an attention, by head as the portable graph has them, and by token as kernels take and return them.

The conversion from one to the other is undone if all ops between permit it.
"""

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import array_of, integers

_READS = ("Identity", "ContextRead")
_PRODUCTS = ("FusedMatMul", "MatMulNBits", "QGemm")
#: Inputs with a row for each output.
_WEIGHTS = {"FusedMatMul": 1, "QGemm": 3}
_HEADS_FIRST = [0, 2, 1, 3]  # (batch, seq, heads, size) <-> (batch, heads, seq, size)


def read(value: ir.Value | None) -> tuple[ir.Value | None, list[ir.Node]]:
    """Return what is read, and by which nodes."""
    reads: list[ir.Node] = []
    while value is not None and (read := value.producer()) and read.op_type in _READS:
        reads.append(read)
        value = read.inputs[0]
    return value, reads


def flat(tape: Tape, heads: ir.Value) -> ir.Value:
    """Make (batch, seq, heads * size) of (batch, heads, seq, size), by undoing what made it if that can be.

    Args:
        tape: Records what is needed.
        heads: Query, key or value heads.
    """
    split = by_token(tape, heads)
    producer = split.producer()
    if producer is not None and producer.op_type == "Reshape" and _is_product(producer.inputs[0]):
        return producer.inputs[0]  # type: ignore[return-value]
    return tape.op("Reshape", [split, integers(tape, 0, 0, -1)])


def as_heads(node: ir.Node, tape: Tape, attended: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Record the heads that a kernel's output (batch, seq, heads * size) holds.

    Args:
        node: An attention, whose answer is (batch, seq, heads, size).
        tape: Records what is needed.
        attended: The kernel's answer.

    Returns:
        A value of the graph, and what takes its place: where all that reads the heads flattens them, what it makes.
    """
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) == 1 and _flattens(readers[0]):
        return readers[0].outputs[0], attended
    heads = node.attributes.get_int("num_heads", 0)
    return node.outputs[0], tape.op("Reshape", [attended, integers(tape, 0, 0, heads, -1)])


def _flattens(node: ir.Node) -> bool:
    """Whether a node makes (…, …, heads * size) for a product with a matrix, with as many rows as before."""
    shape = node.inputs[1].producer() if node.op_type == "Reshape" and node.inputs[1] else None
    if shape is None or shape.op_type != "Concat" or len(shape.inputs) != 3:
        return False
    last = array_of(shape.inputs[2])
    multiplied = any(_is_product(reader.outputs[0]) for reader in _readers(node))
    return multiplied and last is not None and last.tolist() == [-1]


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield what reads a node's result, or tokens that are picked of it, see `passes.needed_tokens`."""
    for use in node.outputs[0].uses():
        yield from _readers(use.node) if use.node.op_type == "GatherND" else (use.node,)


def by_token(tape: Tape, heads: ir.Value) -> ir.Value:
    """Make (batch, seq, heads, size) of (batch, heads, seq, size), by undoing what made it if that can be."""
    return undone(heads) or tape.op("Transpose", [heads], {"perm": _HEADS_FIRST})


def undone(heads: ir.Value) -> ir.Value | None:
    """Return what a Transpose made (batch, heads, seq, size) of, or None where none did."""
    transpose = heads.producer()
    if transpose is None or transpose.op_type != "Transpose":
        return None
    perm = list(transpose.attributes.get_ints("perm", []))
    return transpose.inputs[0] if perm == _HEADS_FIRST else None


def width_of(heads: ir.Value) -> int | None:
    """Return heads * size of (batch, heads, seq, size), from a state or the weight matrix; None if neither has it."""
    value, _ = read(heads)
    if value is not None and value.shape is not None:
        count, size = value.shape[1], value.shape[3]
        return count * size if isinstance(count, int) and isinstance(size, int) else None
    split = undone(heads)
    producer = split.producer() if split is not None else None
    return (
        _columns(producer.inputs[0])
        if producer is not None and producer.op_type == "Reshape"
        else None
    )


def _columns(value: ir.Value | None) -> int | None:
    """Return how many columns a value has that a matrix made, with a bias, less offsets or scaled."""
    if value is not None and value.shape is not None:
        return value.shape[-1] if isinstance(value.shape[-1], int) else None
    node = value.producer() if value is not None else None
    if node is None or not _is_product(value):
        return None
    if node.op_type == "MatMulNBits":
        return node.attributes.get_int("N")
    if node.op_type in _WEIGHTS:
        weight = node.inputs[_WEIGHTS[node.op_type]]
        rows = weight.shape[0] if weight is not None and weight.shape is not None else None
        return rows if isinstance(rows, int) else None
    return next((columns for one in node.inputs if (columns := _columns(one)) is not None), None)


def _is_product(value: ir.Value | None) -> bool:
    """Whether a weight matrix made a value of hidden states (batch, seq, …), with a bias, offset or scale."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type in ("Add", "Sub", "Mul"):
        return any(_is_product(one) for one in node.inputs)
    if node is not None and node.op_type == "Reshape":  # of rows of a batch
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        return producer is not None and producer.op_type == "QGemm"
    return node is not None and node.op_type in _PRODUCTS
