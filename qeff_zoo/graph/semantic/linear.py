# SPDX-License-Identifier: Apache-2.0
"""What most layers are made of: products by a weight matrix, what adapters add to them, and RMS norms."""

from qeff_zoo.graph.semantic.op import SemanticOp

# --- linear: x (…, K), weight (N, K) -> (…, N) ---
LINEAR = SemanticOp(
    name="Linear",
    inputs=2,
    body="""
    Linear (x, weight) => (y) {
        transposed = Transpose <perm = [1, 0]> (weight)
        y = MatMul (x, transposed)
    }""",
)


# --- LoRA: y (B, S, N), x (B, S, K), a (slots, K, r), b (slots, r, N), ids (B, 1) -> (B, S, N) ---
# Row i gets the product of x with the low-rank matrices of slot ids[i]. Slot 0 is the model as it is.
LORA = SemanticOp(
    name="Lora",
    inputs=5,
    body="""
    Lora (y, x, a, b, ids) => (z) {
        one = Constant <value_ints = [1]> ()
        slots = Squeeze (ids, one)
        down = Gather <axis = 0> (a, slots)
        up = Gather <axis = 0> (b, slots)
        low = MatMul (x, down)
        delta = MatMul (low, up)
        z = Add (y, delta)
    }""",
)


# --- RMS norm: x (…, K), weight (K) ---
RMS_NORM = SemanticOp(
    name="RMSNorm",
    inputs=2,
    attributes=("epsilon", "offset"),
    body="""
    RMSNorm <epsilon, offset> (x, weight) => (y) {
        eps = Constant <value_float: float = @epsilon> ()
        added = Constant <value_float: float = @offset> ()
        wide = Cast <to = 1> (x)
        square = Mul (wide, wide)
        axis = Constant <value_ints = [-1]> ()
        mean = ReduceMean <keepdims = 1> (square, axis)
        safe = Add (mean, eps)
        root = Sqrt (safe)
        normal = Div (wide, root)
        wide_weight = Cast <to = 1> (weight)
        scale = Add (wide_weight, added)
        scaled = Mul (normal, scale)
        y = CastLike (scaled, x)
    }""",
)
