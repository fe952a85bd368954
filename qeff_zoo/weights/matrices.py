# SPDX-License-Identifier: Apache-2.0
"""Weights of a graph that is lowered: which values are matrices, and the slots of the data file that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import CompileError
from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.external_data import SLOT, is_placeholder, placeholder, read_slot, slots_read
from qeff_zoo.graph.numerics import FLOAT32, Format, RoundedMatrix
from qeff_zoo.graph.ranks import Ranks
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.moves import Moved
from qeff_zoo.weights.storage import Storage

from . import moves, stacks

_DTYPES = {
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "I32": ir.DataType.INT32,
    "U8": ir.DataType.UINT8,
    "I8": ir.DataType.INT8,
    "BF16": ir.DataType.BFLOAT16,
    "F8_E4M3": ir.DataType.FLOAT8E4M3FN,
    "F8_E5M2": ir.DataType.FLOAT8E5M2,
}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight matrix (rows, columns).

    Args:
        name: Name of its weight, with the number of the matrix or of its first row if that has several.
        expression: Value of the matrix.
        rows: Outputs.
        columns: Inputs.
        input_major: Whether the weight holds it as (columns, rows).
        format: Storage format.
        kept: Whether the checkpoint stores it so.
    """

    name: str
    expression: Expression
    rows: int
    columns: int
    input_major: bool
    format: Format
    kept: bool


@dataclass
class Matrices:
    """The weights of one lowering: slots made so far, shared where two initializers are the same data.

    Args:
        graph: Portable; its weights are taken out, lowered ones get their names.
        bindings: Expression over checkpoint tensors for every weight.
        storage: Storage of matrices that are multiplied or looked up; if it is of floats, of all matrices. All else
            is float32.
    """

    graph: ir.Graph
    bindings: Mapping[str, Expression]
    storage: Storage
    slots: dict[str, Slot] = field(default_factory=dict)
    weights: dict[ir.Value, str] = field(default_factory=dict)
    rounded: dict[str, RoundedMatrix] = field(default_factory=dict)
    #: Slots of joined matrices, and those of their parts.
    parts: dict[str, list[str]] = field(default_factory=dict)
    _same: dict[str, str] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)
    #: What several products make of one value, by that value and a name.
    made: dict[tuple[ir.Value, str], ir.Value] = field(default_factory=dict)
    _converted: dict[str, ir.Value] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        """Take the portable graph's weights out; the lowered ones get their names."""
        initializers = self.graph.initializers
        self.weights = {
            value: name for name, value in initializers.items() if is_placeholder(value)
        }
        for name in self.weights.values():
            del initializers[name]

    def takes(self, format: Format) -> bool:
        """Whether the target computes with integers of a format as a checkpoint stores them."""
        return False

    def format_of(self, name: str, expression: Expression) -> tuple[Format, bool]:
        """Return how a matrix is to be stored, and whether the checkpoint stores it so."""
        self._named.add(self.storage.pattern_of(name) or "")
        return self.storage.of(name, expression, self.takes)

    def require_named(self) -> None:
        """Make sure that every pattern of names had a matrix.

        Raises:
            CompileError: One had none.
        """
        for pattern, _ in self.storage.named:
            if pattern not in self._named:
                raise CompileError(
                    f"--format names {pattern!r}, which no matrix fits, or none before another pattern. Expected names "
                    f"such as {next(iter(self.bindings))!r}, with * and ? for what may differ. Correct it."
                )

    def slot(
        self,
        name: str,
        expression: Expression,
        format: Format,
        add: float = 0.0,
        *,
        kept: bool = False,
    ) -> Slot:
        """Return the slot for a value, the same one for tied weights."""
        identity = f"{expression} {format} {add}"
        if identity not in self._same and name in self.slots:
            name = f"{name}.bits{format.bits}"  # the same weight stored in two ways
        known = self._same.setdefault(identity, name)
        if known not in self.slots:
            self.slots[known] = Slot(known, expression, format, add, kept)
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

    def another(self, value: ir.Value) -> ir.Value:
        """Return one more initializer of the same bytes, for a reader that must share none."""
        assert value.name is not None
        assert isinstance(value.const_value, ir.ExternalTensor)
        names = (f"{value.name}.use{number}" for number in count(2))
        name = next(name for name in names if name not in self.graph.initializers)
        tensor = placeholder(name, value.const_value.dtype, value.shape)
        made = ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
        read_slot(made, value.metadata_props[SLOT])
        self.graph.initializers[name] = made
        return made

    def matrix(self, value: ir.Value | None, *, input_major: bool = False) -> Matrix | None:
        """Return a weight matrix, or None for any other value.

        Args:
            value: Perhaps a weight.
            input_major: Whether the matrix is stored as (columns, rows) and needs a transposition.
        """
        if value is None:
            return None
        if value in self.weights:
            name = self.weights[value]
            shape, expression = shape_of(value), self.bindings[name]
        else:
            stacked, index = stacks.picked(value)
            cut, first, last = stacks.cut_rows(value)
            if stacked in self.weights:
                whole = self.weights[stacked]
                name, shape = f"{whole}.{index}", shape_of(stacked)[1:]
                expression = expressions.index(index, self.bindings[whole])
            elif cut in self.weights and len(shape_of(cut)) == 2:
                whole = self.weights[cut]
                name, shape = f"{whole}.{first}", [last - first, shape_of(cut)[1]]
                expression = expressions.cut(0, first, last, self.bindings[whole])
            else:
                return None
        if len(shape) != 2:
            return None
        rows, columns = reversed(shape) if input_major else shape
        value_of = expressions.transpose(0, 1, expression) if input_major else expression
        format, kept = self.format_of(name, value_of)
        return Matrix(
            name=name,
            expression=value_of,
            rows=rows,
            columns=columns,
            input_major=input_major,
            format=format,
            kept=kept,
        )

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
            kept=slot.kept,
        )

    def quantized(self, slot: Slot, packed: list[int], scales: list[int]) -> list[ir.Value]:
        """Return initializers with a slot's integers, scales and, if asymmetric or per-channel, zero points.

        Args:
            slot: Slot of quantized matrices.
            packed: Shape of the integers, in bytes.
            scales: Shape of the scales.
        """
        dtype = "I8" if slot.format.per_channel else "U8"
        values = [
            self.tensor(slot, packed, dtype=dtype),
            self.factors(slot, scales, "scales"),
        ]
        if slot.format.per_channel:
            values.append(self.tensor(slot, scales, f"{slot.name}.zero_points", dtype))
        if slot.format.zero_points:
            zeros = [*scales[:-1], -(-scales[-1] * slot.format.bits // 8)]
            values.append(self.tensor(slot, zeros, f"{slot.name}.zero_points", "U8"))
        return values

    def factors(self, slot: Slot, shape: list[int], what: str) -> ir.Value:
        """Return the scales or the offsets of integers in float32, for a reader of constants.

        Smaller ones are converted by the first nodes of the graph, which ONNX Runtime folds when it opens it.

        Args:
            slot: Slot of quantized matrices.
            shape: Shape of the factors: one for each block.
            what: "scales" or "offsets".
        """
        format, entry = slot.format, f"{slot.name}.{what}"
        dtype = "F32" if format.per_channel or format.scale == "float32" else "F16"
        if dtype == "F32":
            return self.tensor(slot, shape, entry)
        known = self._converted.get(entry)
        if known is not None and (made := known.producer()) and made.graph is not None:
            return known
        tape, before = Tape(), None
        if format.super_block:
            supers = shape[-1] // format.super_block
            parts = [
                self.tensor(slot, [*shape[:-1], supers, format.super_block], entry, "I8"),
                self.tensor(slot, [*shape[:-1], supers, 1], f"{slot.name}.super_{what}", dtype),
            ]
            whole = integers(tape, *shape)
            floats = [tape.op("Cast", [part], {"to": ir.DataType.FLOAT}) for part in parts]
            value = tape.op("Reshape", [tape.op("Mul", floats), whole])
        else:
            small = self.tensor(slot, shape, entry, dtype)
            value = tape.op("Cast", [small], {"to": ir.DataType.FLOAT})
        if what == "offsets" and format.origin:
            scales = self.factors(slot, shape, "scales")
            before = scales.producer()
            steps = ir.tensor(format.origin, dtype=ir.DataType.FLOAT)
            first = tape.op("Mul", [scales, tape.op("Constant", [], {"value": steps})])
            value = tape.op("Sub", [value, first])
        if before is None:
            self.graph.insert_before(self.graph[0], list(tape.nodes))
        else:
            self.graph.insert_after(before, list(tape.nodes))
        value.shape, value.type = ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
        self._converted[entry] = value
        return value

    def used_slots(self) -> list[Slot]:
        """Return the slots that some initializer of the finished graph reads."""
        read = slots_read(self.graph)
        return [slot for slot in self.slots.values() if slot.name in read]

    def settle(self) -> None:
        """Store weights that are transposed, reshaped, cut or joined as they are read: no call moves them again."""
        known = {
            value: Moved(name, self.bindings[name], tuple(shape_of(value)))
            for value, name in self.weights.items()
        }
        for node in list(self.graph):
            known.update(zip(node.outputs, moves.moved(node, known), strict=False))
            if node.op_type == "Shape" and (weight := known.get(input_of(node, 0))) is not None:
                self._fold_shape(node, weight.shape)  # else the file would hold it for that alone
        for value, moved in known.items():
            if value in self.weights or all(node.outputs[0] in known for node, _ in value.uses()):
                continue
            self._store(value, moved)

    def _fold_shape(self, node: ir.Node, shape: tuple[int, ...]) -> None:
        """Replace a Shape by what it finds."""
        start, end = (
            node.attributes.get_int(name, other) for name, other in (("start", 0), ("end", None))
        )
        constant = ir.node("Constant", [], {"value_ints": shape[start:end]})
        constant.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], [constant], node.outputs, constant.outputs
        )

    def rest(self) -> None:
        """Give every weight that is still used as it was a slot of floats."""
        for value, name in self.weights.items():
            if value.uses():
                self._store(value, Moved(name, self.bindings[name], tuple(shape_of(value))))

    def _store(self, value: ir.Value, moved: Moved) -> None:
        """Read a value from a slot of floats; matrices of float16 are cast."""
        matrix, floats = len(moved.shape) > 1, self.storage.floats
        format = floats if matrix and floats.is_float else FLOAT32
        slot = self.slot(moved.name, moved.expression, format)
        tensor = self.tensor(slot, list(moved.shape), dtype=f"F{slot.format.bits}")
        if slot.format.bits == 16:
            reader = next(use.node for use in value.uses())
            cast = ir.node("Cast", [tensor], {"to": ir.DataType.FLOAT})
            cast.metadata_props.update(reader.metadata_props)
            self.graph.insert_before(self.graph[0], cast)
            tensor = cast.outputs[0]
        ir.convenience.replace_all_uses_with(value, tensor)


def input_of(node: ir.Node, index: int) -> ir.Value:
    """Return an input that is there."""
    value = node.inputs[index]
    assert value is not None
    return value


def shape_of(value: ir.Value) -> list[int]:
    """Return the shape of a weight."""
    dims = [] if value.shape is None else [dim for dim in value.shape if isinstance(dim, int)]
    if value.shape is None or len(dims) != len(value.shape):
        raise CompileError(
            f"Initializer {value.name!r} has shape {value.shape}, expected a static one."
        )
    return dims
