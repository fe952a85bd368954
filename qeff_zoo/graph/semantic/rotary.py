# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings: pairs of numbers of a head, rotated by an angle whose cosine and sine are given for every token.

As ONNX's RotaryEmbedding of opset 23, with a cosine and a sine for each token in place of tables. Pairs are one number
of each half, or neighbours (interleaved); numbers beyond `rotary_embedding_dim` stay as they are (partial).

In comments: B batch, S new tokens, H heads, D head size, R numbers that are rotated.
"""

from qeff_zoo.graph.semantic.op import SemanticOp


def name_of(*, interleaved: bool, partial: bool) -> str:
    """Return the name of the op for one kind of rotary embedding."""
    return f"{'Partial' * partial}{'Interleaved' * interleaved}RotaryEmbedding"


# --- x (B, H, S, D), cos and sin (B or 1, S, R / 2) -> (B, H, S, D) ---
_BODY = """
    {name} <interleaved, rotary_embedding_dim> (x, cos, sin) => (y) {{
        heads_axis = Constant <value_ints = [1]> ()
        last_axis = Constant <value_ints = [3]> ()
        cos_rows = Unsqueeze (cos, heads_axis)
        sin_rows = Unsqueeze (sin, heads_axis)
        begin = Constant <value_ints = [0]> ()
        half = Shape <start = 2, end = 3> (cos)
        size = Add (half, half)
        {split}
        first_cos = Mul (first, cos_rows)
        first_sin = Mul (first, sin_rows)
        second_cos = Mul (second, cos_rows)
        second_sin = Mul (second, sin_rows)
        first_rotated = Sub (first_cos, second_sin)
        second_rotated = Add (second_cos, first_sin)
        {join}
    }}"""
_SPLIT = {
    False: """first = Slice (x, begin, half, last_axis)
        second = Slice (x, half, size, last_axis)""",
    True: """next = Constant <value_ints = [1]> ()
        step = Constant <value_ints = [2]> ()
        first = Slice (x, begin, size, last_axis, step)
        second = Slice (x, next, size, last_axis, step)""",
}
_JOIN = {
    False: "{y} = Concat <axis = -1> (first_rotated, second_rotated{rest})",
    True: """pair_axis = Constant <value_ints = [4]> ()
        first_of_pairs = Unsqueeze (first_rotated, pair_axis)
        second_of_pairs = Unsqueeze (second_rotated, pair_axis)
        pairs = Concat <axis = -1> (first_of_pairs, second_of_pairs)
        flat = Constant <value_ints = [0, 0, 0, -1]> ()
        {y} = Reshape (pairs, flat)""",
}
_REST = """whole = Shape <start = 3, end = 4> (x)
        rest = Slice (x, size, whole, last_axis)
        """


def _join(*, interleaved: bool, partial: bool) -> str:
    if not partial:
        return _JOIN[interleaved].format(y="y", rest="")
    if not interleaved:
        return _REST + _JOIN[interleaved].format(y="y", rest=", rest")
    rotated = _JOIN[interleaved].format(y="rotated")
    return f"{_REST}{rotated}\n        y = Concat <axis = -1> (rotated, rest)"


ROTARY_EMBEDDINGS = tuple(
    SemanticOp(
        name=name_of(interleaved=interleaved, partial=partial),
        inputs=3,
        integers=("interleaved", "rotary_embedding_dim"),
        body=_BODY.format(
            name=name_of(interleaved=interleaved, partial=partial),
            split=_SPLIT[interleaved],
            join=_join(interleaved=interleaved, partial=partial),
        ),
    )
    for interleaved in (False, True)
    for partial in (False, True)
)
