# SPDX-License-Identifier: Apache-2.0
"""Products by weight matrices and norms by weights, as targets that run ONNX Runtime's operators lower them alike."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import onnx_ir as ir

from qeff_zoo.numerics import FLOAT32, RoundedMatrix
from qeff_zoo.weights.matrices import Matrices, Matrix, input_of, shape_of
from qeff_zoo.weights.quantization import block_count

CONTRIB = "com.microsoft"


class Products(Matrices):
    """The weights of one lowering, and how a target multiplies by them."""

    def product(self, x: ir.Value, matrix: Matrix) -> ir.Node:
        """Multiply by a weight matrix in the chosen format."""
        raise NotImplementedError

    def in_integers(self, x: ir.Value, matrix: Matrix, **attributes: int) -> ir.Node:
        """Multiply by a matrix of integers, by MatMulNBits.

        Args:
            x: Left side.
            matrix: Right side.
            **attributes: Of the node, besides its sizes.
        """
        rows, columns, format = matrix.rows, matrix.columns, self.format
        slot = self.slot(matrix.name, matrix.expression, format)
        blocks = block_count(columns, format.block)
        self.note(slot, rows, columns, input_major=matrix.input_major, multiplied=True)
        packed = [rows, blocks, format.block * format.bits // 8]
        quantized = self.quantized(slot, packed, [rows, blocks])
        sizes = {"K": columns, "N": rows, "bits": format.bits, "block_size": format.block}
        return ir.node("MatMulNBits", [x, *quantized], {**sizes, **attributes}, domain=CONTRIB)

    def used_matrices(self) -> tuple[RoundedMatrix, ...]:
        """Return the matrices of integers that the finished graph reads."""
        used = {slot.name for slot in self.used_slots()}
        return tuple(matrix for name, matrix in self.rounded.items() if name in used)


_Lowering = TypeVar("_Lowering", bound=Products)


def replace(
    lowering: _Lowering,
    rules: Mapping[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]],
) -> None:
    """Replace nodes of a lowering's graph, in place.

    Args:
        lowering: Of the graph.
        rules: By domain and operator: the nodes in its place, the last of which makes what it made; None to leave it.
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
    return None if matrix is None else [lowering.product(input_of(node, 0), matrix)]


def matmul(lowering: Products, node: ir.Node) -> list[ir.Node] | None:
    """Replace a product by a weight that is stored input-major."""
    matrix = lowering.matrix(node.inputs[1], input_major=True)
    return None if matrix is None else [lowering.product(input_of(node, 0), matrix)]


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
        return [product]
    return [product, ir.node("Add", [product.outputs[0], node.inputs[2]])]


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
