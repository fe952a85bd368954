# SPDX-License-Identifier: Apache-2.0
"""Bodies of semantic ops for HTP, where the standard ones have what its compiler refuses (`GatherND`, `Scan`).

Every shape is known when they are compiled, so that what computes shapes and indices of them folds away.
"""

from typing import Any

from qeff_zoo.graph.semantic.domains import OPSET, SEMANTIC

#: Padding (-1) equals no row, so that nothing of it is written and no index can be out of range.
_CACHE_WRITE = """
    CacheWrite (past, position_ids, new) => (present) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        first_axis = Constant <value_ints = [0]> ()
        row_axis = Constant <value_ints = [1]> ()
        inner_axes = Constant <value_ints = [1, 2]> ()
        last_axis = Constant <value_ints = [3]> ()
        rows_shape = Shape <start = 2, end = 3> (past)
        count = Squeeze (rows_shape, first_axis)
        rows = Range (zero, count, one)
        row_column = Unsqueeze (rows, row_axis)
        wanted = Unsqueeze (position_ids, inner_axes)
        hit = Equal (row_column, wanted)
        hits = CastLike (hit, past)
        new_like = CastLike (new, past)
        written = MatMul (hits, new_like)
        any_hit = ReduceMax <keepdims = 1> (hits, last_axis)
        half = Constant <value_float = 0.5> ()
        half_like = CastLike (half, past)
        taken = Greater (any_hit, half_like)
        present = Where (taken, written, past)
    }"""

BODIES = (_CACHE_WRITE,)


def functions() -> list[Any]:
    """Return them as `onnx_ir.Function`s."""
    import onnx.parser
    import onnx_ir as ir

    header = f'<domain: "{SEMANTIC}", opset_import: ["" : {OPSET}]>'
    return [ir.from_proto(onnx.parser.parse_function(header + body)) for body in BODIES]
