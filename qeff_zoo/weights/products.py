# SPDX-License-Identifier: Apache-2.0
"""Products by weight matrices and norms by weights, as targets that run ONNX Runtime's operators lower them alike."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.expressions import sources_of
from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.external_data import SLOT
from qeff_zoo.graph.numerics import FLOAT32, RoundedMatrix
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.matrices import Matrices, Matrix, input_of, shape_of
from qeff_zoo.weights.quantization import block_count

CONTRIB = "com.microsoft"
_POOLED = 3  # axes of a value whose last one AveragePool cuts into windows


class Products(Matrices):
    """The weights of one lowering, and how a target multiplies by them."""

    def product(self, x: ir.Value, matrix: Matrix) -> list[ir.Node]:
        """Multiply by a weight matrix as it is stored; the last node makes the product."""
        raise NotImplementedError

    def in_integers(self, x: ir.Value, matrix: Matrix, **attributes: int) -> list[ir.Node]:
        """Multiply by a matrix of integers, by MatMulNBits.

        Args:
            x: Left side.
            matrix: Right side.
            **attributes: Attributes of the node, besides its sizes.
        """
        rows, columns, format = matrix.rows, matrix.columns, matrix.format
        slot = self.slot(matrix.name, matrix.expression, format, kept=matrix.kept)
        blocks = block_count(columns, format.block)
        self.note(slot, rows, columns, input_major=matrix.input_major, multiplied=True)
        packed = [rows, blocks, format.block * format.bits // 8]
        quantized = self.quantized(slot, packed, [rows, blocks])
        sizes = {"K": columns, "N": rows, "bits": format.bits, "block_size": format.block}
        tape = Tape()
        if format.act_order:
            x = self._in_order(tape, x, slot, columns)
        y = tape.op("MatMulNBits", [x, *quantized], {**sizes, **attributes}, domain=CONTRIB)
        if format.offsets:
            offsets = self.factors(slot, [rows, blocks], "offsets")
            means = self._block_means(tape, x, blocks, format.block)
            # The sum of a block is its mean times a power of two, which is exact.
            times = {"transB": 1, "alpha": float(format.block)}
            less = tape.op("FusedMatMul", [means, offsets], times, domain=CONTRIB)
            tape.op("Sub", [y, less])
        return list(tape.nodes)

    def join(self, products: Sequence[ir.Value | None]) -> list[ir.Node] | None:
        """Multiply by several matrices of integers at once: the rows of all become one matrix, with the same blocks.

        Args:
            products: Results of MatMulNBits, which nothing else may need, on columns in the order of their input; or of
                Sub if it subtracts offsets.

        Returns:
            The nodes, the last of which makes all products one after another; None if they cannot be joined.
        """
        nodes = [None if value is None else _product_of(value) for value in products]
        slots = [
            self.slots.get(input_of(node, 1).metadata_props.get(SLOT, ""))
            for node in nodes
            if node is not None
            and node.op_type == "MatMulNBits"
            and len(node.outputs[0].uses()) == 1
        ]
        found = [slot for slot in slots if slot is not None and not slot.format.act_order]
        alike = {(slot.format, slot.kept) for slot in found}
        sources = {node.inputs[0] for node in nodes if node is not None}
        if len(found) < len(products) or len(alike) > 1 or len(sources) > 1:
            return None
        name, (x,) = "+".join(slot.name for slot in found), sources
        self.parts[name] = [slot.name for slot in found]
        parts = [self.rounded[slot.name] for slot in found]
        matrix = Matrix(
            name=name,
            expression=expressions.concat(0, *(slot.expression for slot in found)),
            rows=sum(part.rows for part in parts),
            columns=parts[0].columns,
            input_major=False,
            format=found[0].format,
            kept=found[0].kept,
        )
        assert x is not None
        return self.product(x, matrix)

    def _in_order(self, tape: Tape, x: ir.Value, slot: Slot, columns: int) -> ir.Value:
        """Take columns in the order of a matrix; those of products of one value often have the same."""
        key = x, self.storage.order_of(slot.expression)
        if key not in self.made:
            order = self.tensor(slot, [columns], f"{slot.name}.order", "I32")
            self.made[key] = tape.op("Gather", [x, order], {"axis": -1})
        return self.made[key]

    def _block_means(self, tape: Tape, x: ir.Value, blocks: int, block: int) -> ir.Value:
        """Average each block of columns."""
        key = x, f"means of {block}"
        if key not in self.made and self.ranks.of(x) == _POOLED:
            window = {"kernel_shape": [block], "strides": [block]}
            self.made[key] = tape.op("AveragePool", [x], window)
        elif key not in self.made:
            # A product: ReduceMean of ONNX Runtime gives the wrong shape where an expert has no tokens.
            share = ir.tensor([[1 / block]] * block, dtype=ir.DataType.FLOAT)
            given = [by_block(tape, x, blocks, block), tape.op("Constant", [], {"value": share})]
            last = integers(tape, -1)
            self.made[key] = tape.op("Squeeze", [tape.op("MatMul", given), last])
        return self.made[key]

    def used_matrices(self) -> tuple[RoundedMatrix, ...]:
        """Return the matrices of integers that the finished graph reads; of joined ones each."""
        used = set(self._used_parts())
        return tuple(matrix for name, matrix in self.rounded.items() if name in used)

    def stored_ways(self) -> Counter[str]:
        """Count what became of quantized matrices of the checkpoint, by codes of `targets.base.STORED_WAYS`."""
        ways: Counter[str] = Counter()
        for slot in map(self.slots.__getitem__, self._used_parts()):
            if any(name in self.storage.encoded for name in sources_of(slot.expression)):
                ways["kept" if slot.kept else "decoded" if slot.format.is_float else "rounded"] += 1
        return ways

    def _used_parts(self) -> list[str]:
        """Return the names of slots that the finished graph reads, and of joined ones those of their parts."""
        names = [slot.name for slot in self.used_slots()]
        return [part for name in names for part in self.parts.get(name, [name])]


def _product_of(value: ir.Value) -> ir.Node | None:
    """Return the node that multiplies; of a product less its offsets too."""
    node = value.producer()
    if node is None or node.op_type != "Sub":
        return node
    made, less = (input_of(node, place).producer() for place in (0, 1))
    of_offsets = less is not None and less.op_type == "FusedMatMul" and "alpha" in less.attributes
    return made if of_offsets else node


def by_block(tape: Tape, x: ir.Value, blocks: int, block: int) -> ir.Value:
    """Cut the last axis into blocks, which get an axis of their own."""
    sizes = integers(tape, blocks, block)
    shape = tape.op("Concat", [tape.op("Shape", [x], {"end": -1}), sizes], {"axis": 0})
    return tape.op("Reshape", [x, shape])


_Lowering = TypeVar("_Lowering", bound=Products)


def replace(
    lowering: _Lowering,
    rules: Mapping[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]],
) -> None:
    """Replace nodes of a lowering's graph, in place.

    Args:
        lowering: Lowering of the graph.
        rules: Rules by domain and operator. Each returns the new nodes, the last with the result; None for no change.
    """
    for node in list(lowering.graph):
        rule = rules.get((node.domain, node.op_type))
        replacement = rule(lowering, node) if rule else None
        if replacement is not None:
            ir.convenience.replace_nodes_and_values(
                lowering.graph, node, [node], replacement, node.outputs, replacement[-1].outputs
            )


def linear(lowering: Products, node: ir.Node) -> list[ir.Node] | None:
    """Replace the semantic op of a product by a weight."""
    matrix = lowering.matrix(node.inputs[1])
    return None if matrix is None else lowering.product(input_of(node, 0), matrix)


def matmul(lowering: Products, node: ir.Node) -> list[ir.Node] | None:
    """Replace a product by a weight that is stored input-major."""
    matrix = lowering.matrix(node.inputs[1], input_major=True)
    return None if matrix is None else lowering.product(input_of(node, 0), matrix)


def gemm(lowering: Products, node: ir.Node) -> list[ir.Node] | None:
    """Replace a plain Gemm by a product and a sum."""
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if not plain or node.attributes.get_int("transA"):
        return None
    output_major = bool(node.attributes.get_int("transB"))
    matrix = lowering.matrix(node.inputs[1], input_major=not output_major)
    if matrix is None:
        return None
    product = lowering.product(input_of(node, 0), matrix)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return product
    return [*product, ir.node("Add", [product[-1].outputs[0], node.inputs[2]])]


def rms_norm(lowering: Products, node: ir.Node) -> list[ir.Node] | None:
    """Replace the semantic op of a norm by one of ONNX Runtime, its offset added to the weight."""
    weight = input_of(node, 1)
    if weight not in lowering.weights:
        return None
    name = lowering.weights[weight]
    offset = node.attributes.get_float("offset", 0.0)
    slot = lowering.slot(name, lowering.bindings[name], FLOAT32, offset)
    scale = lowering.tensor(slot, shape_of(weight))
    attributes = {"axis": -1, "epsilon": node.attributes.get_float("epsilon"), "stash_type": 1}
    return [ir.node("SimplifiedLayerNormalization", [input_of(node, 0), scale], attributes)]
