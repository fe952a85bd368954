# SPDX-License-Identifier: Apache-2.0
"""The portable graph becomes one that HTP's compiler takes, still with symbols for its sizes.

HTP computes in float16. Weights of products are constants (columns, rows), or integers in MatMulNBits; norms are one
op, since the mean of large squares has no place in float16; cosines of positions are looked up.
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.numerics import FLOAT32, Format, Numerics
from qeff_zoo.graph.passes import bfloat16, position_tables
from qeff_zoo.graph.passes import slots as slots_pass
from qeff_zoo.graph.semantic import domains
from qeff_zoo.targets.base import Lowered
from qeff_zoo.weights import products
from qeff_zoo.weights.matrices import Matrix
from qeff_zoo.weights.storage import Storage

from . import bodies


def lower(
    model: ir.Model, bindings: Mapping[str, Expression], storage: Storage, ctx_len: int = 0
) -> Lowered:
    """Lower a portable graph, in place.

    Args:
        model: Portable graph from the exporter.
        bindings: Expression over checkpoint tensors for every initializer without data.
        storage: Storage of matrices that are multiplied; others are floats.
        ctx_len: Rows of the cache, of a graph that has one.
    """
    slots_pass.remove(model)
    onnx_passes.InlinePass(lambda function: function.domain == domains.LAYERS)(model)
    lowering = _Lowering(model.graph, bindings, storage)
    products.replace(lowering, _RULES)
    lowering.require_named()
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
    model.opset_imports[products.CONTRIB] = 1
    ways = dict(lowering.stored_ways())
    return Lowered(
        model=model,
        slots=lowering.used_slots(),
        numerics=lowering.numerics(),
        ways={"weights": ways} if ways else {},
    )


class _Lowering(products.Products):
    """Weights as HTP's compiler takes them."""

    def takes(self, format: Format) -> bool:
        """Take integers of 4 and 8 bits whose columns are where they belong."""
        return format.bits in (4, 8) and format.is_plain

    def product(self, x: ir.Value, matrix: Matrix) -> list[ir.Node]:
        """Multiply by a weight matrix as it is stored."""
        rows, columns, format = matrix.rows, matrix.columns, matrix.format
        if format.is_float or columns % format.block:
            name = matrix.name if matrix.input_major else f"{matrix.name}.transposed"
            slot = self.slot(name, expressions.transpose(0, 1, matrix.expression), FLOAT32)
            return [ir.node("MatMul", [x, self.tensor(slot, [columns, rows])])]
        return self.in_integers(x, matrix)

    def numerics(self) -> Numerics:
        """Return what the finished graph rounds."""
        return Numerics(matrices=self.used_matrices(), activations="float16")


_RULES: dict[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]] = {
    (domains.SEMANTIC, "Linear"): products.linear,
    (domains.SEMANTIC, "RMSNorm"): products.rms_norm,
    ("", "MatMul"): products.matmul,
    ("", "Gemm"): products.gemm,
}
