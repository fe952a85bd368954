# SPDX-License-Identifier: Apache-2.0
"""The portable graph becomes one for Cloud AI 100's compiler: one graph for all specializations, its sizes symbolic.

States go through the compiler's own scatter and gather, see `states`, and RMS norms are its own op, see `ops`. All else
is standard ONNX: bodies of semantic ops, with angles from tables, weights as products read them, and no constant that
float16 and int32 do not hold. Functions of layers are inlined; nodes' names have the layer, see `passes.layers`.

Integers of a quantized checkpoint stay where MatMulNBits takes them as QEfficient gives them, and its 8-bit floats
behind DequantizeLinear.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes
from onnx_ir.tape import Tape

from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.external_data import placeholder
from qeff_zoo.graph.numerics import FLOAT32, Format, Numerics
from qeff_zoo.graph.passes import layers, narrowing, position_tables, sequences, whole_numbers
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.targets.base import Lowered
from qeff_zoo.weights import products, small_floats
from qeff_zoo.weights.bound_graph import BoundGraph
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.matrices import Matrices, Matrix, input_of, shape_of

from . import blocking, ops, placing, sampler, states

_RECURRENCES = {"LinearRecurrence", "DeltaRecurrence"}
_EXPERTS = {"Experts", "InterleavedExperts", "RoutedLinear"}
#: Replaced or counted here. All other semantic ops become their bodies before layers are inlined, which is faster.
_KEPT = {
    *("CacheWrite", "SlotWrite", "SlotRead", "SlotReplace", "ContextRead", "StateBefore"),
    *("Linear", "RMSNorm", *_RECURRENCES, *_EXPERTS),
}
_INT4 = 4  # bits of integers that stay


def lower(
    graph: BoundGraph, program: ProgramPlan, blocked: blocking.Blocking | None = None
) -> Lowered:
    """Lower a portable graph, in place.

    Args:
        graph: With `batch_index`, if the program is for continuous batching.
        program: Program; its `shape.ctx_len` positions are tabulated, and its `weights` are floats; float16 is cast as
            it is read.
        blocked: Blocks of attention; None for attention without blocks.

    Returns:
        The graph. Its numerics know nothing of what the compiler rounds.
    """
    model = graph.model
    _inline(model, _KEPT | blocking.ATTENTION if blocked else _KEPT)
    layers.inline(model)
    sequences.slice_parts(model.graph)
    whole_numbers.divide(model.graph)
    tables = position_tables.tabulate(model.graph, _positions(program))
    ways = _count(model.graph)
    ways["angles"]["table"] = tables
    ways["states"] = states.lower(model.graph)
    if blocked:
        ways["attention"] = Counter(blocked=blocking.lower(model.graph, blocked))
    weights = _Weights(model.graph, graph.bindings, program.storage(graph.encoded))
    products.replace(weights, _RULES)
    for node in list(model.graph):
        if node.domain == SEMANTIC and node.op_type == "RMSNorm":
            _norm(weights, node)
    onnx_passes.RemoveUnusedNodesPass()(model)
    _inline(model)
    for node in list(model.graph):
        if node.op_type == "Gemm":
            _split(model.graph, node)
    if small_floats.keep(weights):
        model.opset_imports[""] = small_floats.OPSET
    weights.settle()
    weights.rest()
    narrowing.narrow(model)
    if program.flags.get("include_sampler") and program.decodes:
        sampler.attach(model, program.flags)
    ops.attach(model)
    model.opset_imports[products.CONTRIB] = 1
    _drop_casts(model)
    onnx_passes.IdentityEliminationPass()(model)
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.RemoveUnusedOpsetsPass()(model)
    if program.shape.apart:
        states.name_for_handover(model.graph)
    states.retain_adapters(model.graph)
    placing.place(model.graph)
    states.name_crossed(model.graph)
    ways["weights"] = weights.stored_ways()
    layers.name_nodes(model)
    return Lowered(
        model=model,
        slots=weights.used_slots(),
        numerics=Numerics(matrices=weights.used_matrices(), activations="float16"),
        ways={what: dict(+counts) for what, counts in ways.items() if +counts},
    )


class _Weights(products.Products):
    """Weights as the compiler takes them: integers of a checkpoint, and all others as they are read."""

    def takes(self, format: Format) -> bool:
        """Take integers of 4 bits whose columns are where they belong, as QEfficient does."""
        return format.bits == _INT4 and format.is_plain

    def matrix(self, value: ir.Value | None, *, input_major: bool = False) -> Matrix | None:
        """Return a weight matrix whose integers stay, in whole blocks; None for any other value."""
        matrix = super().matrix(value, input_major=input_major)
        if matrix is None or not matrix.kept or matrix.columns % matrix.format.block:
            return None
        return matrix

    def product(self, x: ir.Value, matrix: Matrix) -> list[ir.Node]:
        """Multiply by integers."""
        nodes = self.in_integers(x, matrix)
        (product,) = nodes[-1].outputs
        product.type = ir.TensorType(ir.DataType.FLOAT)  # no inference knows it
        return nodes

    def quantized(self, slot: Slot, packed: list[int], scales: list[int]) -> list[ir.Value]:
        """Return integers, scales and zero points, these two along one axis, as in QEfficient's graphs."""
        integers, *others = super().quantized(slot, packed, scales)
        for value in others:
            shape = [math.prod(shape_of(value))]
            assert value.name is not None
            assert value.dtype is not None
            value.shape = ir.Shape(shape)
            value.const_value = placeholder(value.name, value.dtype, shape)
        return [integers, *others]


_RULES: dict[tuple[str, str], Callable[[_Weights, ir.Node], list[ir.Node] | None]] = {
    (SEMANTIC, "Linear"): products.linear,
    ("", "MatMul"): products.matmul,
    ("", "Gemm"): products.gemm,
}


def _positions(program: ProgramPlan) -> int:
    """Return the number of positions: those of the context, or on a side of an image, at most its patches."""
    every = (entry["symbols"].get("patches", 0) for entry in program.specializations)
    return max(map(int, every)) or program.shape.ctx_len


def _inline(model: ir.Model, kept: Collection[str] = ()) -> None:
    """Replace the calls of semantic ops by their bodies, but for some."""
    onnx_passes.InlinePass(
        lambda function: function.domain == SEMANTIC and function.name not in kept
    )(model)


def _count(graph: ir.Graph) -> dict[str, Counter[str]]:
    """Count lowered parts by the codes of `qeff_zoo.targets.qaic.lowering_report`."""
    called = Counter(node.op_type for node in graph if node.domain == SEMANTIC)
    angles = [node for node in graph if node.op_type in ("Cos", "Sin")]
    return {
        "recurrences": Counter(scan=sum(called[op] for op in _RECURRENCES)),
        "experts": Counter(all_tokens=sum(called[op] for op in _EXPERTS)),
        "angles": Counter(computed=len(angles)),
    }


def _norm(weights: Matrices, node: ir.Node) -> None:
    """Replace an RMS norm by the compiler's, which has no offset: it is added to the weight that is stored."""
    tape, weight = Tape(), input_of(node, 1)
    offset = node.attributes.get_float("offset", 0.0)
    if weight in weights.weights:
        name = weights.weights[weight]
        slot = weights.slot(name, weights.bindings[name], FLOAT32, offset)
        weight = weights.tensor(slot, shape_of(weight))
    elif offset:
        weight = tape.op("Add", [weight, tape.op("Constant", [], {"value_float": offset})])
    epsilon = {"epsilon": node.attributes.get_float("epsilon", 0.0)}
    op = ops.RMS_NORM
    normal = tape.op(op.name, [node.inputs[0], weight], epsilon, domain=op.domain)
    _replace(weights.graph, node, tape, normal)


def _split(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a Gemm by a product and a sum: weights are compressed in products alone."""
    x, matrix, *bias = node.inputs
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if not plain or node.attributes.get_int("transA"):
        return
    tape = Tape()
    if node.attributes.get_int("transB"):
        matrix = tape.op("Transpose", [matrix], {"perm": [1, 0]})
    product = tape.op("MatMul", [x, matrix])
    _replace(graph, node, tape, tape.op("Add", [product, *bias]) if bias else product)


def _replace(graph: ir.Graph, node: ir.Node, tape: Tape, value: ir.Value) -> None:
    for one in tape.nodes:
        one.metadata_props.update(node.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [value])


def _drop_casts(model: ir.Model) -> None:
    """Drop casts to the type that a value has; give an explicit type to casts that copied a value's type."""
    onnx_passes.ShapeInferencePass(data_prop=False)(model)
    for node in list(model.graph):
        if node.op_type not in ("Cast", "CastLike"):
            continue
        x = input_of(node, 0)
        like = input_of(node, 1).dtype if node.op_type == "CastLike" else None
        to = like or ir.DataType(node.attributes.get_int("to", 0))
        if to is ir.DataType.UNDEFINED:
            continue
        if x.dtype == to and not (x.producer() is None and node.outputs[0].is_graph_output()):
            output = node.outputs[0]
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], [], [output], [x])
        elif node.op_type == "CastLike":
            cast = ir.node("Cast", [x], {"to": to})
            cast.metadata_props.update(node.metadata_props)
            ir.convenience.replace_nodes_and_values(
                model.graph, node, [node], [cast], node.outputs, cast.outputs
            )
