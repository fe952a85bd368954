# SPDX-License-Identifier: Apache-2.0
"""Lowering of portable graphs for ONNX Runtime, which uses the weights as they lie in the file.

Float32 matrices go through FusedMatMul (which reads them row by row, so that they stay mapped), integers in blocks
through MatMulNBits and GatherBlockQuantized, per-channel ones as in `per_channel`. Attention and its cache writes
become one kernel if possible, see `attention`; other cache writes stay ScatterND, which works in place if a session
binds a state's input and output to one buffer. The same holds for the kernels of recurrences, see `recurrence`. Slots
of continuous batching are rows that a session binds, so no graph here has `batch_index`.
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.numerics import Format, Numerics, format_of
from qeff_zoo.graph.passes import needed_tokens
from qeff_zoo.graph.passes import slots as slots_pass
from qeff_zoo.graph.semantic import domains
from qeff_zoo.targets.base import Lowered
from qeff_zoo.weights import products, stacks
from qeff_zoo.weights.matrices import Matrix, input_of
from qeff_zoo.weights.storage import Storage

from . import attention as attention_pass
from . import convolution, lora, per_channel, recurrence
from . import experts as experts_pass

#: Value of MatMulNBits' `accuracy_level` at which activations are rounded to int8; its kernels are the fast ones.
_INT8_ACTIVATIONS = 4
_ACCURACY_LEVEL = _INT8_ACTIVATIONS
#: Integers of 2 bits have fast products in blocks of these sizes alone. Their rows are not looked up as integers.
_NARROW_BITS, _NARROW_BLOCKS = 2, (64, 128)


def lower(
    model: ir.Model,
    bindings: Mapping[str, Expression],
    storage: Storage,
    ctx_len: int = 0,
    *,
    joins_products: bool = True,
) -> Lowered:
    """Lower a portable graph, in place.

    Args:
        model: Portable graph from the exporter.
        bindings: Expression over checkpoint tensors for every initializer without data.
        storage: Storage of matrices that are multiplied or looked up. All else is float32.
        ctx_len: Rows of the cache, of a graph that has one.
        joins_products: Whether one product makes query, key and value of an attention.
    """
    slots_pass.remove(model)
    onnx_passes.InlinePass(lambda function: function.domain == domains.LAYERS)(model)
    needed_tokens.pick_early(model.graph)
    lowering = _Lowering(model.graph, bindings, storage)
    recurrence.lower(model.graph)
    convolution.lower(model.graph)
    lora.lower(model.graph)
    experts = experts_pass.lower(model.graph, lowering.weights, bindings, lowering.packing)
    products.replace(lowering, _RULES)
    lowering.require_named()
    onnx_passes.RemoveUnusedNodesPass()(model)
    attention = attention_pass.lower(
        model.graph, ctx_len, lowering.join if joins_products else None
    )
    lowering.rest()
    onnx_passes.RemoveUnusedNodesPass()(model)
    _drop_state_casts(model.graph)
    attention_pass.drop_compute_context(model.graph)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.RemoveUnusedOpsetsPass()(model)
    model.opset_imports[products.CONTRIB] = 1
    ways = {
        "attention": dict(attention),
        "experts": dict(experts),
        "weights": dict(lowering.stored_ways()),
    }
    return Lowered(
        model=model,
        slots=lowering.used_slots(),
        numerics=lowering.numerics(),
        ways={what: counts for what, counts in ways.items() if counts},
    )


def _drop_state_casts(graph: ir.Graph) -> None:
    """Drop the casts of outputs that become states: both are float32 here, and a cast would copy."""
    for value in list(graph.outputs):
        cast = value.producer()
        kept = cast.inputs[0] if cast is not None and cast.op_type == "CastLike" else None
        if cast is not None and kept is not None and kept.producer() is not None:
            ir.convenience.replace_nodes_and_values(graph, cast, [cast], [], [value], [kept])


class _Lowering(products.Products):
    """Weights as ONNX Runtime's kernels take them."""

    def takes(self, format: Format) -> bool:
        """Return whether its fast kernels support a format; other products of 2 bits are 200 times as slow."""
        return format.bits != _NARROW_BITS or format.block in _NARROW_BLOCKS

    def product(self, x: ir.Value, matrix: Matrix) -> list[ir.Node]:
        """Multiply by a weight matrix as it is stored."""
        if matrix.format.per_channel:
            return per_channel.product(self, x, matrix)
        if not matrix.format.is_float:
            return self.in_integers(x, matrix, accuracy_level=_ACCURACY_LEVEL)
        slot = self.slot(matrix.name, matrix.expression, matrix.format)
        weight = self.tensor(slot, [matrix.rows, matrix.columns])
        return [ir.node("FusedMatMul", [x, weight], {"transB": 1}, domain=products.CONTRIB)]

    def rows(self, indices: ir.Value, matrix: Matrix) -> list[ir.Node]:
        """Look up rows of a weight matrix, which is of integers."""
        if matrix.format.per_channel:
            return per_channel.rows(self, indices, matrix)
        rows, columns, format = matrix.rows, matrix.columns, matrix.format
        slot = self.slot(matrix.name, matrix.expression, format, kept=matrix.kept)
        self.note(slot, rows, columns, input_major=False, gathered=True)
        packed, *others = self.quantized(
            slot, [rows, columns * format.bits // 8], [rows, columns // format.block]
        )
        attributes = {
            "bits": format.bits,
            "block_size": format.block,
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        given, tape = [packed, indices, *others], Tape()
        looked_up = tape.op("GatherBlockQuantized", given, attributes, domain=products.CONTRIB)
        if format.offsets:
            blocks = columns // format.block
            offsets = self.factors(slot, [rows, blocks], "offsets")
            less = tape.op("Gather", [offsets, indices])
            last = integers(tape, -1)
            by_block = products.by_block(tape, looked_up, blocks, format.block)
            whole = tape.op("Sub", [by_block, tape.op("Unsqueeze", [less, last])])
            tape.op("Reshape", [whole, tape.op("Shape", [looked_up])])
        return list(tape.nodes)

    def numerics(self) -> Numerics:
        """Return what the finished graph rounds: matrices, and the activations that are multiplied by them."""
        matrices = self.used_matrices()
        multiplies = any(matrix.multiplied for matrix in matrices)
        rounds = multiplies and _ACCURACY_LEVEL == _INT8_ACTIVATIONS
        return Numerics(matrices=matrices, int8_activations=rounds)

    @property
    def packing(self) -> experts_pass.Packing | None:
        """How stacks of matrices are quantized, if any can be."""
        if not self.storage.has_integers:
            return None
        return experts_pass.Packing(
            format_of=self._format_of_stack, accuracy_level=_ACCURACY_LEVEL, pack=self._stack
        )

    def _format_of_stack(self, name: str, expression: Expression) -> tuple[Format, bool]:
        """Return what the kernel of experts takes: no rows of one scale, but blocks."""
        format, kept = self.format_of(name, expression)
        return (format_of("int8"), False) if format.per_channel else (format, kept)

    def _stack(
        self,
        name: str,
        expression: Expression,
        count: int,
        rows: int,
        columns: int,
        input_major: bool,
    ) -> list[ir.Value]:
        format, kept = self._format_of_stack(name, expression)
        slot = self.slot(name, expression, format, kept=kept)
        self.note(slot, rows, columns, input_major=input_major, multiplied=True)
        packed = [count, rows, columns * format.bits // 8]
        return self.quantized(slot, packed, [count, rows, columns // format.block])


def _matmul(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    """Multiply by a matrix stored input-major (GPT-2): quantized it is transposed, in float32 it is used as it is.

    One of a stack (GPT-OSS) is transposed in float32 too: it becomes a weight of its own.
    """
    matrix = lowering.matrix(node.inputs[1], input_major=True)
    if matrix is None or (matrix.format.is_float and node.inputs[1] in lowering.weights):
        return None
    if _is_looked_up_and_multiplied(input_of(node, 1)):
        return None
    return lowering.product(input_of(node, 0), matrix)


def _gemm(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    output_major = bool(node.attributes.get_int("transB"))
    matrix = lowering.matrix(node.inputs[1], input_major=not output_major)
    return None if matrix is None or matrix.format.is_float else products.gemm(lowering, node)


def _gather(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    """Look up rows of an embedding matrix."""
    if stacks.picked(node.outputs[0])[0] or node.attributes.get_int("axis", 0) != 0:
        return None
    table = input_of(node, 0)
    if _is_looked_up_and_multiplied(table):
        return None
    matrix = None if table.shape is None else lowering.matrix(table)
    if matrix is None or matrix.format.is_float:
        return None
    format = matrix.format
    if format.block and (
        matrix.columns % format.block or format.bits == _NARROW_BITS or format.act_order
    ):
        return None
    return lowering.rows(input_of(node, 1), matrix)


def _is_looked_up_and_multiplied(table: ir.Value) -> bool:
    """Whether rows of a table are also summed, as in Ovis 2: rounding for lookups differs from rounding for sums."""
    uses = {use.node.op_type for use in table.uses()}
    return {"Gather", "MatMul"} <= uses


_RULES: dict[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]] = {
    (domains.SEMANTIC, "Linear"): products.linear,
    (domains.SEMANTIC, "RMSNorm"): products.rms_norm,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Gather"): _gather,
}
