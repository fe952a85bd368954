# SPDX-License-Identifier: Apache-2.0
"""A float32 graph becomes the same graph in a device's numerics.

What an operator returns is rounded to float16 where it computes something; what only moves numbers is exact as it is.
Constant matrices that are multiplied by go through mxfp6, in blocks along the axis that is summed over. New keys and
values go through mxint8, in blocks along the head, before anything reads them and before they are retained.

All rules are about ONNX operators, so that the same pass applies to portable graphs and to lowered ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import onnx.parser
import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.errors import CompileError
from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import FLOAT16, MXFP6, DeviceNumerics, Format, RoundedMatrix
from qeff_zoo.graph.semantic.domains import OPSET
from qeff_zoo.graph.states import states_of
from qeff_zoo.weights.quantization import round_trip

from . import htp

DOMAIN = "qeff_zoo.graph.numerics"
_MATRIX = "qeff_zoo.matrix"

#: Functions that devices compute as one operator: what is between their input and their result is no float16.
_WHOLE = {"RMSNorm", "CustomRMSNorm"}

#: Operators whose results are numbers that they were given, or as exact as those.
_MOVES = {
    *("Abs", "Clip", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
    *("GatherND", "Identity", "If", "Loop", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu"),
    *("Reshape", "ReverseSequence", "Scan", "Scatter", "ScatterElements", "ScatterND", "SequenceAt", "Sign", "Slice"),
    *("SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique"),
    *("Unsqueeze", "Where"),
}  # fmt: skip

#: Those that may lie between a weight and a product. All but Transpose and Reshape leave its last two axes the last.
_ARRANGES = {
    *("Cast", "CastLike", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
}  # fmt: skip

#: Operator whose result is a weight: that is rounded, and its scales are read as they are.
_DEQUANTIZES = "DequantizeLinear"

_FLOAT16 = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
Float16 (x) => (y) {{
    most = Constant <value_float = {microscaling.FLOAT16_MAX}> ()
    least = Constant <value_float = -{microscaling.FLOAT16_MAX}> ()
    within = Clip (x, least, most)
    narrow = Cast <to = 10> (within)
    y = Cast <to = 1> (narrow)
}}"""

# As `mx.round_trip` of numbers that float16 holds, bit for bit. The power of two at or below x is x rounded to one
# significant bit, by adding and taking away 2 ** 23 * x, and halved where that rounded up.
_MXINT8 = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
MXInt8 (x) => (y) {{
    one = Constant <value_ints = [1]> ()
    block = Constant <value_ints = [{microscaling.BLOCK}]> ()
    rest = Constant <value_ints = [-1]> ()
    zero = Constant <value_ints = [0]> ()
    shape = Shape (x)
    columns = Shape <start = -1> (x)
    full = Sub (block, one)
    more = Add (columns, full)
    blocks = Div (more, block)
    width = Mul (blocks, block)
    padding = Sub (width, columns)
    pads = Concat <axis = 0> (zero, zero, zero, padding)
    rows_shape = Concat <axis = 0> (rest, columns)
    rows = Reshape (x, rows_shape)
    padded = Pad (rows, pads)
    blocks_shape = Concat <axis = 0> (rest, block)
    numbers = Reshape (padded, blocks_shape)
    sizes = Abs (numbers)
    top = ReduceMax <keepdims = 1> (sizes, one)
    tiny = Constant <value_float = 1.1754943508222875e-38> ()
    largest = Max (top, tiny)
    splitter = Constant <value_float = 8388609.0> ()
    half = Constant <value_float = 0.5> ()
    far = Mul (largest, splitter)
    beyond = Sub (far, largest)
    nearest = Sub (far, beyond)
    halved = Mul (nearest, half)
    is_above = Greater (nearest, largest)
    scale = Where (is_above, halved, nearest)
    scaled = Div (numbers, scale)
    steps = Constant <value_float = 64.0> ()
    wide = Mul (scaled, steps)
    whole = Round (wide)
    most = Constant <value_float = 127.0> ()
    least = Constant <value_float = -127.0> ()
    element = Clip (whole, least, most)
    unit = Constant <value_float = 0.015625> ()
    value = Mul (element, unit)
    back = Mul (value, scale)
    back_shape = Concat <axis = 0> (rest, width)
    back_rows = Reshape (back, back_shape)
    kept = Slice (back_rows, zero, columns, one)
    y = Reshape (kept, shape)
}}"""


def apply(model: ir.Model, numerics: DeviceNumerics, *, tables: bool = False) -> None:
    """Give a graph a device's numerics, in place.

    Rounded weights are computed on access, such as when the model is saved; none is kept before.

    Args:
        model: Graph in float32, with the weights' data or with where it lies. Metadata of its inputs mark the states.
        numerics: Numerics of the device.
        tables: Whether the device reads from tables what depends on positions alone, as the angles of rotary
            embeddings: that is then computed as it is and rounded once. A graph that has such tables needs it not.

    Raises:
        CompileError: Types of the graph's values are unknown.
    """
    onnx_passes.InlinePass(lambda function: function.name not in _WHOLE)(model)
    onnx_passes.NameFixPass()(model)  # inlining knows no names within Scan
    onnx_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    onnx_passes.LiftSubgraphInitializersToMainGraphPass()(model)
    _infer_types(model)
    rounding = _Rounding(model.graph, numerics, _of_positions(model.graph) if tables else set())
    rounding.round_weights()
    if numerics.functions == "htp":
        htp.mark(model.graph, DOMAIN)
    if numerics.activations == "float16":
        rounding.round_results()
    if numerics.states == "mxint8":
        rounding.round_states()
    for body in (_FLOAT16, _MXINT8, *htp.bodies(DOMAIN)):
        function: ir.Function = ir.from_proto(onnx.parser.parse_function(body))  # type: ignore[assignment]
        model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1
    for value in (value for node in model.graph.all_nodes() for value in node.outputs):
        if (
            value not in model.graph.outputs
        ):  # of a sequence's parts inference says what holds of one
            value.shape = None
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.TopologicalSortPass()(model)


def _infer_types(model: ir.Model) -> None:
    onnx_passes.ShapeInferencePass()(model)
    for node in model.graph.all_nodes():
        if node.op_type == "SplitToSequence":  # onnx_ir's pass takes it for a tensor
            (parts,) = node.outputs
            parts.type, parts.shape = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)), None
        unknown = [value.name for value in node.outputs if value.type is None and value.uses()]
        if unknown:
            raise CompileError(
                f"Cannot find the type of {unknown[0]!r}, which {node.op_type} computes in graph {model.graph.name!r}; "
                "expected a graph whose types ONNX infers. Check it with `onnx.checker`."
            )


def matrices(model: ir.Model) -> tuple[RoundedMatrix, ...]:
    """Return the weights that `apply` rounded to mxfp6, by their names in the Hugging Face model.

    Args:
        model: After `apply`.
    """
    rounded = []
    for value in model.graph.initializers.values():
        if (name := value.metadata_props.get(_MATRIX)) is not None:
            *_, first, second = (int(size) for size in value.shape or ())  # type: ignore[arg-type]
            input_major = str(value.name).endswith(".2")
            rows, columns = (second, first) if input_major else (first, second)
            matrix = RoundedMatrix(
                name=name,
                rows=rows,
                columns=columns,
                input_major=input_major,
                format=MXFP6,
                multiplied=True,
            )
            rounded.append(matrix)
    return tuple(rounded)


@dataclass
class _Rounding:
    """State of one pass.

    Args:
        graph: The main one; others lie in its nodes.
        numerics: Numerics of the device.
        exact: Values that stay exact, and are rounded where they meet others.
    """

    graph: ir.Graph
    numerics: DeviceNumerics
    exact: set[ir.Value]
    _kept: set[ir.Value] = field(default_factory=set)
    _rounded: dict[tuple[ir.Value, Format], ir.Value] = field(default_factory=dict)

    # --- weights ---------------------------------------------------------------------------------

    def round_weights(self) -> None:
        """Let every reader of a constant read it rounded, but those of weights that are kept."""
        multiplied = dict(self._multiplied()) if self.numerics.weights else {}
        for value in list(self.graph.initializers.values()):
            if not _is_float(value):
                continue
            if self.numerics.keeps(str(value.name)):
                self._kept.add(value)
                continue
            for node, index in list(value.uses()):
                if self._is_exact(node) or node.op_type == _DEQUANTIZES:
                    continue
                axis = multiplied.get((value, node))
                if axis is None and not self._rounds_to_float16(value):
                    continue
                format = FLOAT16 if axis is None else replace(MXFP6, axis=axis)
                node.replace_input_with(index, self._constant(value, format))
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[str(value.name)]

    def _rounds_to_float16(self, value: ir.Value) -> bool:
        """Return whether a constant is read in float16: all where activations are, else matrices of the checkpoint."""
        matrix = isinstance(value.const_value, ir.ExternalTensor) and len(value.shape or ()) > 1
        return self.numerics.activations == "float16" or matrix

    def _constant(self, value: ir.Value, format: Format) -> ir.Value:
        if (value, format) not in self._rounded:
            kind = f"mxfp6.{-format.axis}" if format.is_mx else "float16"
            fresh = _later(value, format, f"{value.name}.{kind}")
            if format.is_mx:
                fresh.metadata_props[_MATRIX] = str(value.name)
            self.graph.register_initializer(fresh)
            self._rounded[value, format] = fresh
        return self._rounded[value, format]

    def _multiplied(self) -> Iterator[tuple[tuple[ir.Value, ir.Node], int]]:
        """Find constant right sides of products: the weight, its reader, and the axis that is summed over."""
        for node in self.graph.all_nodes():
            if node.op_type not in ("MatMul", "Gemm") or node.domain:
                continue
            output_major = node.op_type == "Gemm" and bool(node.attributes.get_int("transB"))
            matrix = _matrix(node, node.inputs[1], -1 if output_major else -2)
            if matrix is not None:
                weight, reader, axis = matrix
                yield (weight, reader), axis

    # --- results ---------------------------------------------------------------------------------

    def round_results(self) -> None:
        """Round what operators return."""
        for node in list(self.graph.all_nodes()):
            exact = self._is_exact(node)
            if not exact and (_moves(node) or self._reads_kept(node)):
                continue
            for value in node.outputs:
                uses = [
                    use
                    for use in value.uses()
                    if not (exact and self._is_exact(use.node)) and use.node.op_type != _DEQUANTIZES
                ]
                if _is_float(value) and (uses or value.is_graph_output()):
                    self._redirect(value, ir.node("Float16", [value], domain=DOMAIN), uses)

    def _is_exact(self, node: ir.Node) -> bool:
        return self.exact.issuperset(node.outputs)

    def _reads_kept(self, node: ir.Node) -> bool:
        return any(_constant_of(value) in self._kept for value in node.inputs)

    def _redirect(
        self, value: ir.Value, call: ir.Node, uses: Iterable[tuple[ir.Node, int]]
    ) -> None:
        """Let readers of a value read what a call makes of it."""
        (rounded,) = call.outputs
        rounded.name, rounded.type = f"{value.name}.{call.op_type}", value.type
        producer = value.producer()
        assert producer is not None
        graph = producer.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_after(producer, call)
        for node, index in uses:
            node.replace_input_with(index, rounded)
        for index, output in enumerate(graph.outputs):
            if output is value:
                rounded.shape = value.shape
                value.name, rounded.name = f"{value.name}.before.{call.op_type}", value.name
                graph.outputs[index] = rounded

    # --- states ----------------------------------------------------------------------------------

    def round_states(self) -> None:
        """Round new keys and values: rounding again what was retained changes nothing."""
        keys = ("growing", "index", "window")
        names = {one.output for one in states_of(self.graph.inputs) if one.kind in keys}
        for value in list(self.graph.outputs):
            if value.name in names and value.producer() is not None:
                uses = list(value.uses())
                self._redirect(value, ir.node("MXInt8", [value], domain=DOMAIN), uses)


def _later(value: ir.Value, format: Format, name: str) -> ir.Value:
    """Return an initializer that is rounded on demand."""
    exact = value.const_value
    assert exact is not None

    def rounded() -> ir.Tensor[Any]:
        return ir.Tensor(round_trip(exact.numpy(), format), name=name)

    tensor = ir.LazyTensor(rounded, ir.DataType.FLOAT, ir.Shape(exact.shape.numpy()), name=name)
    return ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT


def _moves(node: ir.Node) -> bool:
    """Whether a node's result is as exact as its input."""
    if node.domain:
        return False
    if node.op_type in ("Cast", "CastLike"):
        given = node.inputs[0]
        return given is not None and given.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    return node.op_type in _MOVES


def _matrix(
    reader: ir.Node, value: ir.Value | None, axis: int
) -> tuple[ir.Value, ir.Node, int] | None:
    """Follow an operand to the matrix that it is: that, who reads it, and where the operand's axis lies in it."""
    while value is not None and not value.is_initializer():
        node = value.producer()
        if node is None or not _arranges(node):
            return None
        if node.op_type == "Transpose":
            order = node.attributes.get_ints("perm") or list(range(len(value.shape or ())))[::-1]
            axis = order[axis] - len(order)
        if node.op_type == "Reshape" and (axis != -1 or not _same_columns(node)):
            return None
        reader, value = node, node.inputs[0]
    return None if value is None or len(value.shape or ()) < 2 else (value, reader, axis)


def _same_columns(node: ir.Node) -> bool:
    """Whether a Reshape keeps the last axis, as where a matrix becomes a stack of them."""
    given, result = node.inputs[0], node.outputs[0]
    if given is None or not given.shape or not result.shape:
        return False
    return given.shape[-1] == result.shape[-1]


def _arranges(node: ir.Node) -> bool:
    """Whether a node uses a matrix as it is, transposed, in parts, or out of a stack."""
    if node.domain or node.op_type not in _ARRANGES:
        return False
    if node.op_type != "Gather":
        return True
    index = node.inputs[1]
    return index is not None and index.is_initializer() and index.shape == []


def _constant_of(value: ir.Value | None) -> ir.Value | None:
    """Return the constant of which a value is an arrangement; None for what is computed."""
    while value is not None and (node := value.producer()) is not None:
        value = node.inputs[0] if _arranges(node) else None
    return value


def _of_positions(graph: ir.Graph) -> set[ir.Value]:
    """Return what is computed from positions and constants alone: no weight, no state and no token has a part in it."""
    known = {
        value
        for value in graph.initializers.values()
        if not isinstance(value.const_value, ir.ExternalTensor)
    }
    known |= {value for value in graph.inputs if value.name == "position_ids"}
    computed: set[ir.Value] = set()
    for node in graph:
        inner = any(
            attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()
        )
        if not inner and all(
            value is None or value in known or value in computed for value in node.inputs
        ):
            computed.update(node.outputs)
    return computed
