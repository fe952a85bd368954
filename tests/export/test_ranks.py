# SPDX-License-Identifier: Apache-2.0
"""Numbers of axes by operators are those that ONNX infers, or unknown."""

import onnx_ir as ir
import pytest

from qeff_zoo.graph.ranks import Ranks

_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[b, s, 8] x, int64[b, s] ids, float[t, 8] flat, int64[k] sizes) => (float[b, s, 8] y)
<float[8] weight = {1, 1, 1, 1, 1, 1, 1, 1}, float[16, 8] table> {
  found = Gather (table, ids)
  y = Add (found, weight)
  scaled = Mul (flat, weight)
  both = Add (scaled, y)
  batch = Shape <start = 0, end = 1> (x)
  one = Squeeze (batch)
  minus = Constant <value_ints = [-1]> ()
  listed = Reshape (one, minus)
  shape = Concat <axis = 0> (listed, minus, minus, minus)
  by_head = Reshape (x, shape)
  pooled = AveragePool <kernel_shape = [4], strides = [4]> (x)
  other = Reshape (x, sizes)
  sum = Add (other, weight)
  turned = Transpose (x)
}
"""
_RANKS = {
    "found": 3, "y": 3, "scaled": 2, "both": 3, "batch": None, "one": 0, "minus": 1, "listed": 1,
    "by_head": 4, "pooled": 3, "other": None, "sum": None, "turned": None,
}  # fmt: skip


@pytest.mark.parametrize("name", _RANKS)
def test_ranks_follow_from_operators(name: str) -> None:
    import onnx.parser

    graph = ir.from_proto(onnx.parser.parse_model(_GRAPH)).graph
    (value,) = [out for node in graph for out in node.outputs if out.name == name]
    for node in graph:
        for out in node.outputs:
            out.shape = None
    assert Ranks().of(value) == _RANKS[name]
