# SPDX-License-Identifier: Apache-2.0
"""Recurrences over tokens as products of matrices, a block of tokens at a time: HTP's compiler takes no Scan.

Within a block, the update of a token decays by exp of the sum of the log decays after it. These sums are products with
constant matrices of zeros and ones: differences of running sums would lose their digits in float16. What the delta rule
writes follows from what it wrote before in the block, (I + N) written = rate * (value - read): N is strictly lower
triangular, so that (I + N)^-1 = (I - N)(I + N^2)(I + N^4)…, which ends.

In comments: X batch times heads, T tokens of the block, K key and V value columns, D decays: K or 1.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.passes.parts import Array
from qeff_zoo.graph.semantic import domains

#: Semantic ops that are replaced here.
OPS = frozenset({"LinearRecurrence", "DeltaRecurrence"})
_BLOCK = 16  # tokens


def expand(graph: ir.Graph) -> None:
    """Replace every recurrence, in place.

    Args:
        graph: Static graph, in which the shapes of all inputs of recurrences are known.
    """
    for node in [node for node in graph if node.domain == domains.SEMANTIC and node.op_type in OPS]:
        maker = _Blocks(graph)
        outputs = maker.recurrence(node)
        nodes = list(maker.tape.nodes)
        ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, outputs)


class _Blocks:
    """Records the nodes of one recurrence.

    Args:
        graph: Graph that gets the constants.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph, self.tape = graph, Tape()

    def recurrence(self, node: ir.Node) -> tuple[ir.Value, ir.Value]:
        """Return what is read after each token (B, S, H, V), and the last state (B, H, K, V)."""
        state, log_decay, key, value, query, *beta = (one for one in node.inputs if one is not None)
        batch, seq, heads, columns = _shape(value)
        keys = _shape(key)[3]
        flat = self._reshape(state, batch * heads, keys, columns)
        decays, values = (self._by_head(one, heads) for one in (log_decay, value))
        sources, reads = (self._by_head(projection, heads) for projection in (key, query))
        rates = self._rates(beta[0]) if beta else None
        blocks = []
        for first in range(0, seq, _BLOCK):
            cut = slice(first, min(first + _BLOCK, seq))
            rate = None if rates is None else self._slice(rates, cut)
            decay, key, value, query = (
                self._slice(one, cut) for one in (decays, sources, values, reads)
            )
            y, flat = self._block(flat, decay, key, value, query, rate)
            blocks.append(y)
        whole = blocks[0] if len(blocks) == 1 else self.op("Concat", *blocks, axis=1)
        by_head = self._reshape(whole, batch, heads, seq, columns)
        y = self.op("Transpose", by_head, perm=[0, 2, 1, 3])
        return y, self._reshape(flat, batch, heads, keys, columns)

    def _block(
        self,
        state: ir.Value,
        log_decay: ir.Value,
        key: ir.Value,
        value: ir.Value,
        query: ir.Value,
        rate: ir.Value | None,
    ) -> tuple[ir.Value, ir.Value]:
        """Return what is read in a block (X, T, V), and the state after it (X, K, V)."""
        tokens = _shape(key)[1]
        begun = self._decay(np.tri(tokens), log_decay)  # (X, T, D): of what was there before
        between = self._between(log_decay, tokens)
        earlier = self.op("MatMul", self.op("Mul", query, begun), state)
        if rate is not None:
            known = self.op("MatMul", self.op("Mul", key, begun), state)
            wanted = self.op("Mul", self.op("Sub", value, known), rate)
            strict = self._constant(np.tri(tokens, k=-1)[None])
            similarity = self.op("Mul", self._alike(key, key, between, tokens), strict)
            value = self._solve(self.op("Mul", similarity, rate), wanted, tokens)
        y = self.op("MatMul", self._alike(query, key, between, tokens), value)
        # of what each token leaves, and of what was there, at the end of the block
        left = self.op("Mul", key, self._decay(1 - np.tri(tokens), log_decay))
        final = self._decay(np.ones((1, tokens)), log_decay)  # (X, 1, D)
        kept = self.op("Mul", state, self.op("Transpose", final, perm=[0, 2, 1]))
        update = self.op("MatMul", self.op("Transpose", left, perm=[0, 2, 1]), value)
        return self.op("Add", earlier, y), self.op("Add", kept, update)

    def _decay(self, summed: Array, log_decay: ir.Value) -> ir.Value:
        """Return exp of sums of log decays (X, N, D), selected by a matrix (N, T)."""
        return self.op("Exp", self.op("MatMul", self._constant(summed[None]), log_decay))

    def _between(self, log_decay: ir.Value, tokens: int) -> ir.Value:
        """Return how far what each token leaves has decayed when another reads it, (X, T * T, D): 0 for later ones."""
        before = np.tri(tokens, dtype=bool)  # the column's token is not after the row's
        summed = before[:, None, :] & ~before[None, :, :]  # after the source, up to the reader
        flat = self._decay(summed.reshape(-1, tokens).astype(np.float64), log_decay)
        return self.op("Mul", flat, self._constant(before.reshape(1, -1, 1)))

    def _alike(self, left: ir.Value, right: ir.Value, between: ir.Value, tokens: int) -> ir.Value:
        """Return products of rows (X, T, K) with rows (X, T, K), decayed: (X, T, T)."""
        batch, _, columns = _shape(left)
        if _shape(between)[2] == 1:
            plain = self.op("MatMul", left, self.op("Transpose", right, perm=[0, 2, 1]))
            return self.op("Mul", plain, self._reshape(between, batch, tokens, tokens))
        pairs = self.op(
            "Mul",
            self._reshape(left, batch, tokens, 1, columns),
            self._reshape(right, batch, 1, tokens, columns),
        )
        flat = self._reshape(pairs, batch, tokens * tokens, columns)
        last = self._constant(np.array([-1]), np.int64)
        summed = self.op("ReduceSum", self.op("Mul", flat, between), last, keepdims=0)
        return self._reshape(summed, batch, tokens, tokens)

    def _solve(self, lower: ir.Value, wanted: ir.Value, tokens: int) -> ir.Value:
        """Return (I + lower)^-1 wanted, of a strictly lower triangular matrix (X, T, T)."""
        if tokens == 1:
            return wanted
        solved = self.op("Sub", wanted, self.op("MatMul", lower, wanted))
        power, exponent = lower, 2
        while exponent < tokens:
            power = self.op("MatMul", power, power)
            solved = self.op("Add", solved, self.op("MatMul", power, solved))
            exponent *= 2
        return solved

    def _rates(self, beta: ir.Value) -> ir.Value:
        """Bring rates (B, S, H) to (X, S, 1)."""
        batch, seq, heads = _shape(beta)
        by_head = self.op("Transpose", beta, perm=[0, 2, 1])
        return self._reshape(by_head, batch * heads, seq, 1)

    def _by_head(self, value: ir.Value, heads: int) -> ir.Value:
        """Bring (B, S, heads or groups, N) to (X, S, N); the heads of a group share what it has."""
        batch, seq, groups, columns = _shape(value)
        moved = self.op("Transpose", value, perm=[0, 2, 1, 3])
        if groups != heads:
            each = self._reshape(moved, batch * groups, 1, seq, columns)
            times = self._constant(np.array([1, heads // groups, 1, 1]), np.int64)
            moved = self.op("Tile", each, times)
            moved.shape = ir.Shape([batch * groups, heads // groups, seq, columns])
        return self._reshape(moved, batch * heads, seq, columns)

    def _slice(self, value: ir.Value, cut: slice) -> ir.Value:
        """Cut tokens out of (X, S, N)."""
        batch, seq, columns = _shape(value)
        if (cut.start, cut.stop) == (0, seq):
            return value
        bounds = [self._constant(np.array([one]), np.int64) for one in (cut.start, cut.stop, 1)]
        part = self.op("Slice", value, *bounds)
        part.shape = ir.Shape([batch, cut.stop - cut.start, columns])
        return part

    def _reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        reshaped = self.op("Reshape", value, self._constant(np.array(shape), np.int64))
        reshaped.shape = ir.Shape(shape)
        return reshaped

    def op(self, name: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Record one op of ONNX."""
        value = self.tape.op(name, inputs, attributes)
        value.type = inputs[0].type
        if name == "Transpose":
            value.shape = ir.Shape([_shape(inputs[0])[axis] for axis in attributes["perm"]])
        elif name in ("Mul", "MatMul", "Sub", "Add", "Exp"):
            value.shape = ir.Shape(_result(name, inputs))
        return value

    def _constant(self, array: Array, dtype: type = np.float32) -> ir.Value:
        wanted: Array = np.ascontiguousarray(array, dtype)
        name = f"recurrence.{hashlib.sha256(repr((wanted.shape, wanted.tobytes())).encode()).hexdigest()[:12]}"
        known = self._graph.initializers
        if name not in known:
            tensor = ir.tensor(wanted, name=name)
            known[name] = ir.Value(
                name=name,
                shape=ir.Shape(wanted.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
        return known[name]


def _result(name: str, inputs: Sequence[ir.Value]) -> tuple[int, ...]:
    shapes = [_shape(value) for value in inputs]
    if name == "MatMul":
        lead = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        return (*lead, shapes[0][-2], shapes[1][-1])
    return np.broadcast_shapes(*shapes)


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    assert value.shape.is_static()
    return tuple(value.shape.numpy())
