# SPDX-License-Identifier: Apache-2.0
"""Numbers of axes of values in graphs whose values have no shapes, by the operators that make them."""

import onnx_ir as ir

from qeff_zoo.graph.constants import tensor_of

#: Operators by how many of their inputs give the axes of the result: the most of these, or of lookups the sum less one.
_SHAPING = {
    **dict.fromkeys(("Add", "Div", "Mul", "Sub", "Gather", "GatherBlockQuantized"), 2),
    **dict.fromkeys(
        ("Cast", "CastLike", "Clip", "Erf", "Gelu", "Relu", "Pow", "Sigmoid", "Tanh"), 1
    ),
    **dict.fromkeys(("LayerNormalization", "RMSNorm", "SimplifiedLayerNormalization"), 1),
    **dict.fromkeys(("AveragePool", "FusedMatMul", "Linear", "MatMulNBits"), 1),
}
_LOOKUPS = ("Gather", "GatherBlockQuantized")


class Ranks:
    """Numbers of axes of the values of one graph, each found once."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, int | None] = {}

    def of(self, value: ir.Value | None) -> int | None:
        """Return the number of axes of a value; None if its shape and the operators before it do not show it."""
        if value is None:
            return None
        if value.shape is not None:
            return len(value.shape)
        if value not in self._known:
            self._known[value] = self._of_result(value.producer())
        return self._known[value]

    def _of_result(self, node: ir.Node | None) -> int | None:
        if node is None:
            return None
        if (constant := tensor_of(node.outputs[0])) is not None:
            return len(constant.shape)
        if node.op_type == "Reshape":
            return self._length(node.inputs[1])
        if node.op_type == "Squeeze":
            return 0 if self._length(node.inputs[0]) == 1 else None  # a single size
        ranks = [self.of(each) for each in node.inputs[: _SHAPING.get(node.op_type, 0)]]
        known = [rank for rank in ranks if rank is not None]
        if not known or len(known) < len(ranks):
            return None
        return sum(known) - 1 if node.op_type in _LOOKUPS else max(known)

    def _length(self, value: ir.Value | None) -> int | None:
        """Return the number of elements of a list of sizes."""
        if (constant := tensor_of(value)) is not None:
            return constant.size
        node = None if value is None else value.producer()
        if node is not None and node.op_type == "Concat":
            lengths = [self._length(each) for each in node.inputs]
            known = [length for length in lengths if length is not None]
            return sum(known) if len(known) == len(lengths) else None
        if node is not None and node.op_type == "Shape" and "end" in node.attributes:
            length = node.attributes.get_int("end", 0) - node.attributes.get_int("start", 0)
            return length if length > 0 else None
        # A single size, as the exporter adds it to a list.
        is_single = node is not None and node.op_type == "Reshape" and self.of(node.inputs[0]) == 0
        return 1 if is_single else None
