# SPDX-License-Identifier: Apache-2.0
"""The portable graph becomes one for ONNX Runtime, whose weights are used as they lie in the file.

Float32 matrices go through FusedMatMul (which reads them row by row, so that they stay mapped), integers through
MatMulNBits and GatherBlockQuantized. Attention and what it writes become one kernel where they can, see `attention`;
else cache writes keep their bodies: ScatterND works in place once a session binds a state's input and output to one
buffer. So do the kernels of recurrences, see `recurrence`. Slots of continuous batching are rows that a session binds,
so no graph here has `batch_index`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.errors import CompileError
from qeff_zoo.numerics import FLOAT32, Format, Numerics, RoundedMatrix
from qeff_zoo.passes import slots as slots_pass
from qeff_zoo.semantic import domains
from qeff_zoo.targets import Lowered
from qeff_zoo.targets.ort import attention as attention_pass
from qeff_zoo.targets.ort import convolution, recurrence, stacks
from qeff_zoo.targets.ort import experts as experts_pass
from qeff_zoo.weights import expressions
from qeff_zoo.weights.expressions import Expression
from qeff_zoo.weights.external_data import is_placeholder, placeholder, read_slot, slots_read
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.quantization import block_count

_CONTRIB = "com.microsoft"
_INT8_ACTIVATIONS = 4
_ACCURACY_LEVEL = _INT8_ACTIVATIONS  # the fast kernels
_DTYPES = {"F32": ir.DataType.FLOAT, "U8": ir.DataType.UINT8}


def lower(
    model: ir.Model, bindings: Mapping[str, Expression], format: Format, ctx_len: int = 0
) -> Lowered:
    """Lower a portable graph, in place.

    Args:
        model: As the exporter returns it.
        bindings: For every initializer without data, its value over checkpoint tensors.
        format: Of matrices that are multiplied or looked up. All else is float32.
        ctx_len: Rows of the cache, of a graph that has one.
    """
    slots_pass.remove(model)
    onnx_passes.InlinePass(lambda function: function.domain == domains.LAYERS)(model)
    lowering = _Lowering(model.graph, bindings, format)
    recurrence.lower(model.graph)
    convolution.lower(model.graph)
    experts = experts_pass.lower(model.graph, lowering.weights, bindings, lowering.packing)
    for node in list(model.graph):
        rule = _RULES.get((node.domain, node.op_type))
        replacement = rule(lowering, node) if rule else None
        if replacement is not None:
            ir.convenience.replace_nodes_and_values(
                model.graph, node, [node], replacement, node.outputs, replacement[-1].outputs
            )
    onnx_passes.RemoveUnusedNodesPass()(model)
    attention = attention_pass.lower(model.graph, ctx_len)
    for value, name in lowering.weights.items():
        if value.uses():
            slot = lowering.slot(name, bindings[name], FLOAT32)
            ir.convenience.replace_all_uses_with(value, lowering.tensor(slot, _shape(value)))
    onnx_passes.RemoveUnusedNodesPass()(model)
    _keep_as_computed(model.graph)
    attention_pass.drop_compute_context(model.graph)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.RemoveUnusedOpsetsPass()(model)
    model.opset_imports[_CONTRIB] = 1
    ways = {"attention": dict(attention), "experts": dict(experts)}
    return Lowered(
        model=model,
        slots=lowering.used_slots(),
        numerics=lowering.numerics(),
        ways={what: counts for what, counts in ways.items() if counts},
    )


def _keep_as_computed(graph: ir.Graph) -> None:
    """Drop the casts of what becomes a state: here all that is computed is float32 as states are, and a cast copies."""
    for value in list(graph.outputs):
        cast = value.producer()
        kept = cast.inputs[0] if cast is not None and cast.op_type == "CastLike" else None
        if cast is not None and kept is not None and kept.producer() is not None:
            ir.convenience.replace_nodes_and_values(graph, cast, [cast], [], [value], [kept])


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A weight matrix (rows, columns).

    Args:
        name: Of its weight, with the number of the matrix or of its first row where that has several.
        expression: Its value.
        rows: Outputs.
        columns: Inputs.
        input_major: Whether the weight holds it as (columns, rows).
    """

    name: str
    expression: Expression
    rows: int
    columns: int
    input_major: bool


@dataclass
class _Lowering:
    """State of one lowering: slots made so far, shared where two initializers are the same data."""

    graph: ir.Graph
    bindings: Mapping[str, Expression]
    format: Format
    slots: dict[str, Slot] = field(default_factory=dict)
    weights: dict[ir.Value, str] = field(default_factory=dict)
    rounded: dict[str, RoundedMatrix] = field(default_factory=dict)
    _same: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the portable graph's weights out; the lowered ones get their names."""
        initializers = self.graph.initializers
        self.weights = {
            value: name for name, value in initializers.items() if is_placeholder(value)
        }
        for name in self.weights.values():
            del initializers[name]

    def slot(self, name: str, expression: Expression, format: Format, add: float = 0.0) -> Slot:
        """Return the slot for a value, the same one for tied weights."""
        identity = f"{expression} {format} {add}"
        if identity not in self._same and name in self.slots:
            name = f"{name}.bits{format.bits}"  # the same weight stored in two ways
        known = self._same.setdefault(identity, name)
        if known not in self.slots:
            self.slots[known] = Slot(known, expression, format, add)
        return self.slots[known]

    def tensor(self, slot: Slot, shape: list[int], entry: str = "", dtype: str = "F32") -> ir.Value:
        """Return an initializer that reads one tensor of a slot, in a shape of the caller's."""
        entry = entry or slot.name
        name = entry if len(shape) != 3 else f"{entry}.blocks"
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        tensor = placeholder(name, _DTYPES[dtype], shape)
        value = ir.Value(
            name=name, shape=ir.Shape(shape), type=ir.TensorType(_DTYPES[dtype]), const_value=tensor
        )
        read_slot(value, entry)
        self.graph.initializers[name] = value
        return value

    def matrix(self, value: ir.Value | None, *, input_major: bool = False) -> _Matrix | None:
        """Return a weight matrix, or None for any other value.

        Args:
            value: Perhaps a weight.
            input_major: It is stored as (columns, rows) and is to be transposed.
        """
        if value is None:
            return None
        if value in self.weights:
            name = self.weights[value]
            shape, expression = _shape(value), self.bindings[name]
        else:
            stacked, index = stacks.picked(value)
            cut, first, last = stacks.cut_rows(value)
            if stacked in self.weights:
                whole = self.weights[stacked]
                name, shape = f"{whole}.{index}", _shape(stacked)[1:]
                expression = expressions.index(index, self.bindings[whole])
            elif cut in self.weights and len(_shape(cut)) == 2:
                whole = self.weights[cut]
                name, shape = f"{whole}.{first}", [last - first, _shape(cut)[1]]
                expression = expressions.cut(0, first, last, self.bindings[whole])
            else:
                return None
        if len(shape) != 2:
            return None
        rows, columns = reversed(shape) if input_major else shape
        return _Matrix(
            name=name,
            expression=expressions.transpose(0, 1, expression) if input_major else expression,
            rows=rows,
            columns=columns,
            input_major=input_major,
        )

    def product(self, x: ir.Value, matrix: _Matrix) -> ir.Node:
        """Multiply by a weight matrix in the chosen format."""
        rows, columns, format = matrix.rows, matrix.columns, self.format
        slot = self.slot(matrix.name, matrix.expression, format)
        if format.is_float:
            weight = self.tensor(slot, [rows, columns])
            return ir.node("FusedMatMul", [x, weight], {"transB": 1}, domain=_CONTRIB)
        blocks = block_count(columns, format.block)
        attributes = {
            "K": columns,
            "N": rows,
            "bits": format.bits,
            "block_size": format.block,
            "accuracy_level": _ACCURACY_LEVEL,
        }
        self.note(slot, rows, columns, input_major=matrix.input_major, multiplied=True)
        packed = [rows, blocks, format.block * format.bits // 8]
        quantized = self.quantized(slot, packed, [rows, blocks])
        return ir.node("MatMulNBits", [x, *quantized], attributes, domain=_CONTRIB)

    def rows(self, indices: ir.Value, matrix: _Matrix) -> ir.Node:
        """Look up rows of a weight matrix in the chosen format, which is none of floats."""
        rows, columns, format = matrix.rows, matrix.columns, self.format
        slot = self.slot(matrix.name, matrix.expression, format)
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
        given = [packed, indices, *others]
        return ir.node("GatherBlockQuantized", given, attributes, domain=_CONTRIB)

    def note(
        self,
        slot: Slot,
        rows: int,
        columns: int,
        *,
        input_major: bool,
        multiplied: bool = False,
        gathered: bool = False,
    ) -> None:
        """Note that the graph reads a matrix, or a stack of them, in integers."""
        known = self.rounded.get(slot.name)
        self.rounded[slot.name] = RoundedMatrix(
            name=slot.name,
            rows=rows,
            columns=columns,
            input_major=input_major,
            format=slot.format,
            multiplied=multiplied or (known is not None and known.multiplied),
            gathered=gathered or (known is not None and known.gathered),
        )

    def numerics(self) -> Numerics:
        """Return what the finished graph rounds: matrices, and the left sides of products with them."""
        used = {slot.name for slot in self.used_slots()}
        matrices = tuple(matrix for name, matrix in self.rounded.items() if name in used)
        multiplies = any(matrix.multiplied for matrix in matrices)
        rounds = multiplies and _ACCURACY_LEVEL == _INT8_ACTIVATIONS
        return Numerics(matrices=matrices, activation_block=self.format.block if rounds else None)

    def quantized(self, slot: Slot, packed: list[int], scales: list[int]) -> list[ir.Value]:
        """Return initializers with a slot's integers, scales and, if its format has any, zero points.

        Args:
            slot: Of quantized matrices.
            packed: Shape of the integers, in bytes.
            scales: Shape of the scales.
        """
        values = [
            self.tensor(slot, packed, dtype="U8"),
            self.tensor(slot, scales, f"{slot.name}.scales"),
        ]
        if slot.format.zero_points:
            zeros = [*scales[:-1], (scales[-1] + 1) // 2]
            values.append(self.tensor(slot, zeros, f"{slot.name}.zero_points", "U8"))
        return values

    @property
    def packing(self) -> experts_pass.Packing | None:
        """How stacks of matrices are quantized, if they are."""
        if self.format.is_float:
            return None
        return experts_pass.Packing(
            format=self.format, accuracy_level=_ACCURACY_LEVEL, pack=self._stack
        )

    def _stack(
        self,
        name: str,
        expression: Expression,
        count: int,
        rows: int,
        columns: int,
        input_major: bool,
    ) -> list[ir.Value]:
        slot, format = self.slot(name, expression, self.format), self.format
        self.note(slot, rows, columns, input_major=input_major, multiplied=True)
        packed = [count, rows, columns * format.bits // 8]
        return self.quantized(slot, packed, [count, rows, columns // format.block])

    def used_slots(self) -> list[Slot]:
        """Return the slots that some initializer of the finished graph reads."""
        read = slots_read(self.graph)
        return [slot for slot in self.slots.values() if slot.name in read]


def _linear(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    matrix = lowering.matrix(node.inputs[1])
    return None if matrix is None else [lowering.product(_input(node, 0), matrix)]


def _matmul(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    """Multiply by a matrix stored input-major (GPT-2): quantized it is transposed, in float32 it is used as it is.

    One of a stack (GPT-OSS) is transposed in float32 too: it becomes a weight of its own.
    """
    if lowering.format.is_float and node.inputs[1] in lowering.weights:
        return None
    matrix = lowering.matrix(node.inputs[1], input_major=True)
    return None if matrix is None else [lowering.product(_input(node, 0), matrix)]


def _gemm(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    output_major = bool(node.attributes.get_int("transB"))
    if lowering.format.is_float or not plain or node.attributes.get_int("transA"):
        return None
    matrix = lowering.matrix(node.inputs[1], input_major=not output_major)
    if matrix is None:
        return None
    product = lowering.product(_input(node, 0), matrix)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return [product]
    return [product, ir.node("Add", [product.outputs[0], node.inputs[2]])]


def _gather(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    """Look up rows of an embedding matrix."""
    if (
        lowering.format.is_float
        or stacks.picked(node.outputs[0])[0]
        or node.attributes.get_int("axis", 0) != 0
    ):
        return None
    table = _input(node, 0)
    if table.shape is None or len(table.shape) != 2 or _shape(table)[1] % lowering.format.block:
        return None
    matrix = lowering.matrix(table)
    if matrix is None:
        return None
    return [lowering.rows(_input(node, 1), matrix)]


def _rms_norm(lowering: _Lowering, node: ir.Node) -> list[ir.Node] | None:
    weight = _input(node, 1)
    if weight not in lowering.weights:
        return None
    name = lowering.weights[weight]
    slot = lowering.slot(
        name, lowering.bindings[name], FLOAT32, node.attributes.get_float("offset", 0.0)
    )
    scale = lowering.tensor(slot, _shape(weight))
    attributes = {"axis": -1, "epsilon": node.attributes.get_float("epsilon"), "stash_type": 1}
    return [ir.node("SimplifiedLayerNormalization", [_input(node, 0), scale], attributes)]


_RULES: dict[tuple[str, str], Callable[[_Lowering, ir.Node], list[ir.Node] | None]] = {
    (domains.SEMANTIC, "Linear"): _linear,
    (domains.SEMANTIC, "RMSNorm"): _rms_norm,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Gather"): _gather,
}


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _shape(value: ir.Value) -> list[int]:
    dims = [] if value.shape is None else [dim for dim in value.shape if isinstance(dim, int)]
    if value.shape is None or len(dims) != len(value.shape):
        raise CompileError(
            f"Initializer {value.name!r} has shape {value.shape}, expected a static one."
        )
    return dims
