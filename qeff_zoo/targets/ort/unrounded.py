# SPDX-License-Identifier: Apache-2.0
"""A graph without the rounding of activations: the same packed weights, each product computed in float32.

MatMulNBits and QGemm round their left side to int8. Of int4, MatMulNBits has a kernel of floats, which is as fast with
many rows. Of int8 it has none: a matrix is dequantized by plain operators, which ONNX Runtime folds when it opens the
graph, so that its floats lie in memory. A matrix whose floats have no room there, the output matrix, which few rows are
multiplied by, and the matrices of QGemm are multiplied by the shipped kernel, in parts. A left side that is rounded
already loses nothing, so

    x = r1 + r2 + rest      r1 = x rounded to int8 in the kernel's blocks, r2 = x - r1 rounded likewise

and a product is the sum of the kernel's products of the three parts. The error left is that of the rest, 1/254**2 of
the usual one. QMoE computes in float32 as well: by accuracy level 1 of int4, and of int8 by plain operators on
dequantized weights, see `unfused_experts`.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from . import unfused_experts

_STEPS = 127
_PARTS = 3
_LEAST = 1e-30  # of a block's largest magnitude: a block of zeros is divided, too
#: Operators between QuantizeLinear and QGemm, which only move integers.
_MOVES = {"Reshape", "Split", "Gather", "GatherND", "Unsqueeze", "Squeeze", "Transpose"}
_FLOAT32, _INT4, _INT8 = 1, 4, 8
_BIAS = 5  # input of MatMulNBits
#: Values of a matrix that is dequantized; a larger one is an output matrix.
_MOST_FLOATS = 1 << 26
#: Memory of a dequantized matrix while the graph is opened, in sizes of its floats: each folded operator keeps its own.
_COPIES, _FLOAT_BYTES = 4, 4


def unround(graph: ir.Graph, memory: int | None = None) -> int:
    """Compute every product that rounds its left side in float32 or of parts, in place; return how many did.

    Args:
        graph: Lowered for ONNX Runtime.
        memory: Bytes that dequantized matrices may take while the graph is opened; None if no limit is known.
    """
    splitter, nodes = _Splitter(graph), list(graph)
    needed = _COPIES * _FLOAT_BYTES * sum(_values(node) for node in nodes if _is_dequantized(node))
    has_room = memory is None or needed <= memory
    for node in nodes:
        if _rounds_blocks(node) and node.attributes.get_int("bits", _INT4) == _INT4:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", _FLOAT32)
            splitter.count += 1
        elif has_room and _is_dequantized(node):
            splitter.dequantize(node)
        elif _rounds_blocks(node):
            splitter.split_blocks(node)
        elif node.op_type == "QMoE" and node.attributes.get_int("expert_weight_bits", 0) == _INT4:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", _FLOAT32)
            splitter.count += 1
        elif node.op_type == "QMoE":
            unfused_experts.replace(graph, node)
            splitter.count += 1
        elif node.op_type == "QGemm":
            splitter.split_rows(node)
    if splitter.count:
        graph.extend(splitter.tape.nodes)
        graph.sort()
    return splitter.count


def _rounds_blocks(node: ir.Node) -> bool:
    """Whether a node is a product that rounds its left side in blocks."""
    return node.op_type == "MatMulNBits" and "accuracy_level" in node.attributes


def _is_dequantized(node: ir.Node) -> bool:
    """Whether a node is a product whose matrix is dequantized, if there is room."""
    is_int8 = node.attributes.get_int("bits", _INT4) == _INT8
    return _rounds_blocks(node) and is_int8 and _values(node) <= _MOST_FLOATS


def _values(node: ir.Node) -> int:
    """Return the number of values of a product's matrix."""
    return node.attributes.get_int("N", 0) * node.attributes.get_int("K", 0)


class _Splitter:
    """Parts of the values of one graph, and floats of its matrices, each made once."""

    def __init__(self, graph: ir.Graph) -> None:
        self.tape, self.count = Tape(), 0
        self._graph = graph
        self._floats: dict[tuple[ir.Value, int], list[ir.Value]] = {}
        self._integers: dict[ir.Value, list[ir.Value]] = {}
        self._matrices: dict[ir.Value, ir.Value] = {}
        self._constants: dict[tuple[str, bytes], ir.Value] = {}
        #: Parts one below the other, and the sizes to split what is made of them.
        self._stacked: dict[tuple[ir.Value, ...], tuple[ir.Value, ir.Value]] = {}

    def split_blocks(self, node: ir.Node) -> None:
        """Compute a product by integers in blocks of parts of its left side."""
        parts, others, bias = self._inputs(node)
        self._replace(node, [*self._products(node, parts, others), *bias])

    def dequantize(self, node: ir.Node) -> None:
        """Compute a product by a matrix of int8 in float32."""
        inputs: list[ir.Value | None] = [*node.inputs, *[None] * _BIAS]
        x, packed, scales, zero_points, _, bias = inputs[: _BIAS + 1]
        assert packed is not None
        if packed not in self._matrices:
            self._matrices[packed] = self._matrix(node, packed, scales, zero_points)
        product = self.tape.op(
            "FusedMatMul", [x, self._matrices[packed]], {"transB": 1}, domain=node.domain
        )
        self._replace(node, [product] if bias is None else [product, bias])

    def _matrix(
        self,
        node: ir.Node,
        packed: ir.Value,
        scales: ir.Value | None,
        zero_points: ir.Value | None,
    ) -> ir.Value:
        """Return the floats (rows, columns) of a matrix of int8."""
        op = self.tape.op
        rows, columns = (node.attributes.get_int(name, 0) for name in ("N", "K"))
        of_blocks = self._constant([rows, -1, 1])
        blocks = unfused_experts.dequantized(
            self.tape,
            packed,
            op("Reshape", [scales, of_blocks]),
            zero_points and op("Reshape", [zero_points, of_blocks]),
        )
        matrix = op("Reshape", [blocks, self._constant([rows, -1])])
        if columns % node.attributes.get_int("block_size", 1):
            bounds = [self._constant([number]) for number in (0, columns, 1)]
            matrix = op("Slice", [matrix, *bounds])
        return matrix

    def _inputs(
        self, node: ir.Node
    ) -> tuple[list[ir.Value], list[ir.Value | None], list[ir.Value]]:
        """Return the parts of a product's left side, its other inputs, and its bias, which is added once, if any."""
        x, *others = node.inputs
        assert x is not None
        block, columns = (node.attributes.get_int(name, 0) for name in ("block_size", "K"))
        key = x, block
        if key not in self._floats:
            self._floats[key] = self._parts_of_blocks(x, block, columns)
        bias = others[_BIAS - 1] if len(others) >= _BIAS else None
        if bias is not None:
            others[_BIAS - 1] = None
        return self._floats[key], others, [] if bias is None else [bias]

    def split_rows(self, node: ir.Node) -> None:
        """Compute a product by integers of whole rows of parts of its left side."""
        x, *others = node.inputs
        assert x is not None
        first, *rest = self._products(node, self._parts_of_integers(x), others)
        shares = [self._constant(np.float32((2 * _STEPS) ** -n)) for n in range(1, _PARTS)]
        scaled = [self.tape.op("Mul", pair) for pair in zip(rest, shares, strict=True)]
        self._replace(node, [first, *scaled])

    def _products(
        self, node: ir.Node, parts: list[ir.Value], others: list[ir.Value | None]
    ) -> list[ir.Value]:
        """Return the product of each part, by one node: it packs its matrix once, and reads it once for all.

        And where ONNX Runtime rewrites a matrix (see `processor`), it may have one reader alone.
        """
        key = tuple(parts)
        if key not in self._stacked:
            stacked = self.tape.op("Concat", parts, {"axis": 0})
            size = self.tape.op("Shape", [parts[0]], {"end": 1})
            sizes = self.tape.op("Concat", [size] * len(parts), {"axis": 0})
            self._stacked[key] = stacked, sizes
        stacked, sizes = self._stacked[key]
        (product,) = self._again(node, [stacked, *others])
        return list(self.tape.op_multi_out("Split", [product, sizes], num_outputs=len(parts)))

    def _parts_of_blocks(self, x: ir.Value, block: int, columns: int) -> list[ir.Value]:
        parts, rest = [], x
        for _ in range(_PARTS - 1):
            parts.append(self._rounded(rest, block, columns))
            rest = self.tape.op("Sub", [rest, parts[-1]])
        return [*parts, rest]

    def _rounded(self, x: ir.Value, block: int, columns: int) -> ir.Value:
        """Round to int8 and back in blocks of the last axis, as the kernel does."""
        op, spare = self.tape.op, -columns % block
        rows = op("Reshape", [x, self._constant([-1, columns])])
        if spare:
            rows = op("Pad", [rows, self._constant([0, 0, 0, spare])])
        blocks = op("Reshape", [rows, self._constant([-1, block])])
        largest = op("ReduceMax", [op("Abs", [blocks]), self._constant([-1])])
        largest = op("Max", [largest, self._constant(np.float32(_LEAST))])
        scale = op("Div", [largest, self._constant(np.float32(_STEPS))])
        back = op("Mul", [op("Round", [op("Div", [blocks, scale])]), scale])
        back = op("Reshape", [back, self._constant([-1, columns + spare])])
        if spare:
            bounds = [self._constant([number]) for number in (0, columns, 1)]
            back = op("Slice", [back, *bounds])
        return op("Reshape", [back, op("Shape", [x])])

    def _parts_of_integers(self, value: ir.Value) -> list[ir.Value]:
        """Return a value of integers for each part, in units of that part's scale."""
        if value not in self._integers:
            node = value.producer()
            assert node is not None
            if node.op_type == "QuantizeLinear":
                self._integers[value] = self._quantized(node)
                return self._integers[value]
            assert node.op_type in _MOVES, node.op_type
            source, *others = node.inputs
            assert source is not None
            moved = [self._again(node, [part, *others]) for part in self._parts_of_integers(source)]
            for number, output in enumerate(node.outputs):
                self._integers[output] = [outputs[number] for outputs in moved]
        return self._integers[value]

    def _quantized(self, node: ir.Node) -> list[ir.Value]:
        rest, *others = node.inputs
        parts = []
        for _ in range(_PARTS):
            parts.append(self._again(node, [rest, *others])[0])
            rest = self.tape.op("Sub", [rest, self.tape.op("Round", [rest])])
            rest = self.tape.op("Mul", [rest, self._constant(np.float32(2 * _STEPS))])
        return parts

    def _again(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
        """Add a copy of a node with other inputs; return its outputs."""
        outputs = self.tape.op_multi_out(
            node.op_type,
            inputs,
            node.attributes,
            num_outputs=len(node.outputs),
            domain=node.domain,
        )
        return list(outputs)

    def _constant(self, value: object) -> ir.Value:
        array = np.asarray(value, None if isinstance(value, np.generic) else np.int64)
        key = str(array.dtype), array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.tape.op("Constant", [], {"value": ir.tensor(array)})
        return self._constants[key]

    def _replace(self, node: ir.Node, products: list[ir.Value]) -> None:
        """Put the sum of products, the least first, in place of a node's result."""
        total = products[-1]
        for product in reversed(products[:-1]):
            total = self.tape.op("Add", [total, product])
        old = node.outputs[0]
        total.name, total.type, total.shape = old.name, old.type, old.shape
        old.name = None
        ir.convenience.replace_all_uses_with(old, total, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        self.count += 1
