# SPDX-License-Identifier: Apache-2.0
"""The portable graph becomes one that HTP's compiler takes, still with symbols for its sizes.

HTP computes in float16. Weights of products are constants (columns, rows), or integers in MatMulNBits; norms are one
op, since the mean of large squares has no place in float16; cosines of positions are looked up.
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.numerics import FLOAT32, Format, Numerics
from qeff_zoo.passes import bfloat16, position_tables
from qeff_zoo.passes import slots as slots_pass
from qeff_zoo.semantic import domains
from qeff_zoo.targets import Lowered
from qeff_zoo.targets.qnn_htp import bodies
from qeff_zoo.weights import expressions
from qeff_zoo.weights.expressions import Expression
from qeff_zoo.weights.matrices import Matrices, Matrix, input_of, shape_of
from qeff_zoo.weights.quantization import block_count

_CONTRIB = "com.microsoft"


def lower(
    model: ir.Model, bindings: Mapping[str, Expression], format: Format, ctx_len: int = 0
) -> Lowered:
    """Lower a portable graph, in place.

    Args:
        model: As the exporter returns it.
        bindings: For every initializer without data, its value over checkpoint tensors.
        format: Of matrices that are multiplied; others are floats.
        ctx_len: Rows of the cache, of a graph that has one.
    """
    slots_pass.remove(model)
    onnx_passes.InlinePass(lambda function: function.domain == domains.LAYERS)(model)
    lowering = _Lowering(model.graph, bindings, format)
    for node in list(model.graph):
        rule = _RULES.get((node.domain, node.op_type))
        replacement = rule(lowering, node) if rule else None
        if replacement is not None:
            ir.convenience.replace_nodes_and_values(
                model.graph, node, [node], replacement, node.outputs, replacement[-1].outputs
            )
    onnx_passes.RemoveUnusedNodesPass()(model)
    bfloat16.narrow(model.graph)
    position_tables.tabulate(model.graph, ctx_len)
    lowering.rest()
    for function in bodies.functions():
        if function.identifier() in model.functions:
            model.functions[function.identifier()] = function
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.RemoveUnusedOpsetsPass()(model)
    model.opset_imports[_CONTRIB] = 1
    return Lowered(model=model, slots=lowering.used_slots(), numerics=lowering.numerics(), ways={})


class _Lowering(Matrices):
    """Weights as HTP's compiler takes them."""

    def product(self, x: ir.Value, matrix: Matrix) -> ir.Node:
        """Multiply by a weight matrix in the chosen format."""
        rows, columns, format = matrix.rows, matrix.columns, self.format
        if format.is_float or columns % format.block:
            name = matrix.name if matrix.input_major else f"{matrix.name}.transposed"
            slot = self.slot(name, expressions.transpose(0, 1, matrix.expression), FLOAT32)
            return ir.node("MatMul", [x, self.tensor(slot, [columns, rows])])
        slot = self.slot(matrix.name, matrix.expression, format)
        blocks = block_count(columns, format.block)
        self.note(slot, rows, columns, input_major=matrix.input_major, multiplied=True)
        packed = [rows, blocks, format.block * format.bits // 8]
        quantized = self.quantized(slot, packed, [rows, blocks])
        sizes = {"K": columns, "N": rows, "bits": format.bits, "block_size": format.block}
        return ir.node("MatMulNBits", [x, *quantized], sizes, domain=_CONTRIB)

    def numerics(self) -> Numerics:
        """Return what the finished graph rounds."""
        used = {slot.name for slot in self.used_slots()}
        matrices = tuple(matrix for name, matrix in self.rounded.items() if name in used)
        return Numerics(matrices=matrices, activations="float16")


def _linear(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    matrix = lowering.matrix(node.inputs[1])
    return None if matrix is None else [lowering.product(input_of(node, 0), matrix)]


def _matmul(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    matrix = lowering.matrix(node.inputs[1], input_major=True)
    return None if matrix is None else [lowering.product(input_of(node, 0), matrix)]


def _gemm(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
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


def _rms_norm(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    weight = input_of(node, 1)
    if weight not in lowering.weights:
        return None
    name = lowering.weights[weight]
    offset = node.attributes.get_float("offset", 0.0)
    slot = lowering.slot(name, lowering.bindings[name], FLOAT32, offset)
    scale = lowering.tensor(slot, shape_of(weight))
    attributes = {"axis": -1, "epsilon": node.attributes.get_float("epsilon"), "stash_type": 1}
    return [ir.node("SimplifiedLayerNormalization", [input_of(node, 0), scale], attributes)]


_RULES: dict[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]] = {
    (domains.SEMANTIC, "Linear"): _linear,
    (domains.SEMANTIC, "RMSNorm"): _rms_norm,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
}
