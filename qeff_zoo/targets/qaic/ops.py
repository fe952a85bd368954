# SPDX-License-Identifier: Apache-2.0
"""The custom ops of Cloud AI 100's compiler as ONNX functions, with device bodies and with host bodies.

A model carries device bodies: the compiler implements the calls, and converts inlined bodies back to calls. An index of
`SKIP`, or any other beyond the rows, is skipped by the device: a scatter writes nothing, a gather reads nothing, and
what it then returns is anything. No other runtime has such indices. Host bodies give them a meaning that shows errors:
a scatter leaves all rows as they are, a gather returns NaN.

In comments: B batch, F slots, H heads, C rows, S new tokens, L rows that are read, D head size.
"""

from dataclasses import dataclass

import onnx.parser
import onnx_ir as ir

from qeff_zoo.graph.semantic.domains import OPSET

CLOUD, NORM = "com.qualcomm.cloud", "com.qti.aisw.onnx"
#: The index that is skipped.
SKIP = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class CustomOp:
    """One op, version 1.

    Args:
        name: Op type.
        inputs: Names.
        body: Body for the compiler, in onnx.parser's text form; reads `rows` and `index`, returns `y`.
        rows: Axis of the rows, if it has an index.
        gathers: Whether it reads rows; else it writes some.
        attributes: Names of float attributes.
        domain: Domain of the compiler's ops.
    """

    name: str
    inputs: tuple[str, ...]
    body: str
    rows: int | None = None
    gathers: bool = False
    attributes: tuple[str, ...] = ()
    domain: str = CLOUD

    def function(self, *, host: bool) -> ir.Function:
        """Return the op as an ONNX function.

        Args:
            host: With the body that any runtime executes.
        """
        index = self.inputs[self._place] if self.rows is not None else ""
        first = last = ""
        if host and self.rows is not None:
            first = (_HOST_GATHER if self.gathers else _HOST_SCATTER).format(
                axis=self.rows, next=self.rows + 1, index=index
            )
            last = "" if self.gathers else _HOST_WRITTEN
        data, index = ("rows", "index") if first else ("data", index)
        body = self.body.format(data=data, index=index, y="written" if last else "y")
        attributes = f"<{', '.join(self.attributes)}>" if self.attributes else ""
        text = f"""<domain: "{self.domain}", opset_import: ["" : {OPSET}]>
        {self.name} {attributes} ({", ".join(self.inputs)}) => (y) {{ {first} {body} {last} }}"""
        return ir.serde.deserialize_function(onnx.parser.parse_function(text))

    @property
    def _place(self) -> int:
        return next(i for i, name in enumerate(self.inputs) if name.endswith(("_ids", "_indices")))


# --- host bodies: one row more, where what is skipped goes, or from where it comes ---
_HOST = """
        rows_axis = Constant <value_ints = [{axis}]> ()
        none = Constant <value_ints = [0]> ()
        single = Constant <value_ints = [1]> ()
        nought = Constant <value_int = 0> ()
        size = Shape <start = {axis}, end = {next}> (data)
        total = Squeeze (size)
        row = Slice (data, none, single, rows_axis)
        {more}
        bounded = Min ({index}, total)
        is_negative = Less ({index}, nought)
        from_end = Add ({index}, total)
        index = Where (is_negative, from_end, bounded)"""
_HOST_SCATTER = _HOST.replace("{more}", "rows = Concat <axis = {axis}> (data, row)")
_HOST_WRITTEN = "y = Slice (written, none, size, rows_axis)"
_HOST_GATHER = _HOST.replace(
    "{more}",
    """negative = Constant <value_float = -1.0> ()
        not_a_number = Sqrt (negative)
        poison = CastLike (not_a_number, data)
        poisoned = Mul (row, poison)
        rows = Concat <axis = {axis}> (data, poisoned)""",
)


def _indices(*, slots: bool, heads: bool, index_axis: int) -> str:
    """Write what makes indices (B, H, S, 3), or (B, S, 2) without heads.

    Args:
        slots: `batch_index` names the first axis; else it is the batch.
        heads: Whether there is an axis of heads.
        index_axis: Axis of the tokens or rows in the index, its last.
    """
    rank = 4 if heads else 3
    last = rank - 1
    ones = ", ".join(str(axis) for axis in range(1, rank))
    count = f"""batch_shape = Shape <start = 0, end = 1> ({"batch_index" if slots else "{data}"})
        tokens_shape = Shape <start = {index_axis}, end = {index_axis + 1}> ({{index}})
        one_shape = Constant <value_ints = [1]> ()
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        first_axis = Constant <value_ints = [0]> ()"""
    if heads:
        count += f"""
        heads_shape = Shape <start = 1, end = 2> ({{data}})
        heads_count = Squeeze (heads_shape, first_axis)
        heads = Range (zero, heads_count, one)
        heads_axes = Constant <value_ints = [0, 2, {last}]> ()
        heads_wide = Unsqueeze (heads, heads_axes)
        shape = Concat <axis = 0> (batch_shape, heads_shape, tokens_shape, one_shape)
        heads_index = Expand (heads_wide, shape)"""
    else:
        count += """
        shape = Concat <axis = 0> (batch_shape, tokens_shape, one_shape)"""
    if slots:
        axes = ", ".join(str(axis) for axis in range(2, rank))
        count += f"""
        batch_axes = Constant <value_ints = [{axes}]> ()
        batch_wide = Unsqueeze (batch_index, batch_axes)"""
    else:
        count += f"""
        batch_count = Squeeze (batch_shape, first_axis)
        batch = Range (zero, batch_count, one)
        batch_axes = Constant <value_ints = [{ones}]> ()
        batch_wide = Unsqueeze (batch, batch_axes)"""
    tokens_axes = f"1, {last}" if heads and index_axis == 1 else f"{last}"
    joined = "batch_at, heads_index, tokens_index" if heads else "batch_at, tokens_index"
    return f"""{count}
        batch_at = Expand (batch_wide, shape)
        tokens_axes = Constant <value_ints = [{tokens_axes}]> ()
        tokens_wide = Unsqueeze ({{index}}, tokens_axes)
        tokens_index = Expand (tokens_wide, shape)
        indices = Concat <axis = {last}> ({joined})"""


_SCATTER = """
        {y} = ScatterND ({data}, indices, updates)"""

# --- scatter: data (B, H, C, D), position_ids (B, S), updates (B, H, S, D) -> data with rows replaced ---
SCATTER = CustomOp(
    name="CtxScatter",
    inputs=("data", "position_ids", "updates"),
    rows=2,
    body=_indices(slots=False, heads=True, index_axis=1) + _SCATTER,
)

# --- of slots: data (F, H, C, D), batch_index (B, 1), … -> (F, H, C, D) ---
SCATTER_SLOTS = CustomOp(
    name="CtxScatterCB",
    inputs=("data", "batch_index", "position_ids", "updates"),
    rows=2,
    body=_indices(slots=True, heads=True, index_axis=1) + _SCATTER,
)

# --- without heads: data (F, C, D), batch_index (B, 1), position_ids (B, S), updates (B, S, D) ---
SCATTER_SLOTS_3D = CustomOp(
    name="CtxScatterCB3D",
    inputs=("data", "batch_index", "position_ids", "updates"),
    rows=1,
    body=_indices(slots=True, heads=False, index_axis=1) + _SCATTER,
)

# --- gather: data (B, H, C, D), ctx_indices (B, 1, L), comp_ctx_len () = L -> (B, H, L, D) ---
GATHER = CustomOp(
    name="CtxGather",
    inputs=("data", "ctx_indices", "comp_ctx_len"),
    rows=2,
    gathers=True,
    body="""
        heads = Shape <start = 0, end = 2> ({data})
        one_shape = Constant <value_ints = [1]> ()
        length = Reshape (comp_ctx_len, one_shape)
        shape = Concat <axis = 0> (heads, length)
        wide = Expand ({index}, shape)
        last = Constant <value_ints = [-1]> ()
        indices = Unsqueeze (wide, last)
        {y} = GatherND <batch_dims = 2> ({data}, indices)""",
)

# --- of slots: data (F, H, C, D), batch_index (B, 1), ctx_indices (B, 1, L), comp_ctx_len () = L -> (B, H, L, D) ---
GATHER_SLOTS = CustomOp(
    name="CtxGatherCB",
    inputs=("data", "batch_index", "ctx_indices", "comp_ctx_len"),
    rows=2,
    gathers=True,
    body=_indices(slots=True, heads=True, index_axis=2)
    + """
        {y} = GatherND ({data}, indices)""",
)

# --- without heads: data (F, C, D), batch_index (B, 1), ctx_indices (B, L) -> (B, L, D) ---
GATHER_SLOTS_3D = CustomOp(
    name="CtxGatherCB3D",
    inputs=("data", "batch_index", "ctx_indices"),
    rows=1,
    gathers=True,
    body=_indices(slots=True, heads=False, index_axis=1)
    + """
        {y} = GatherND ({data}, indices)""",
)

# --- RMS norm: hidden_states (…, K), weight (K); the compiler has an op that sums squares beyond float16 ---
RMS_NORM = CustomOp(
    name="CustomRMSNorm",
    inputs=("hidden_states", "weight"),
    attributes=("epsilon",),
    domain=NORM,
    body="""
        axis = Constant <value_ints = [-1]> ()
        wide = Cast <to = 1> (hidden_states)
        square = Mul (wide, wide)
        mean = ReduceMean <keepdims = 1> (square, axis)
        least = Constant <value_float: float = @epsilon> ()
        safe = Add (mean, least)
        root = Sqrt (safe)
        inverse = Reciprocal (root)
        normal = Mul (wide, inverse)
        normal_like = CastLike (normal, weight)
        {y} = Mul (weight, normal_like)""",
)

ALL = (
    *(SCATTER, SCATTER_SLOTS, SCATTER_SLOTS_3D),
    *(GATHER, GATHER_SLOTS, GATHER_SLOTS_3D),
    RMS_NORM,
)


def attach(model: ir.Model) -> None:
    """Give a model the device bodies of the ops that it calls, in place."""
    _attach(model, host=False)


def with_host_bodies(model: ir.Model) -> ir.Model:
    """Return a copy of a lowered model that runs in stock ONNX Runtime: see above what its indices do.

    Args:
        model: Graph from `lowering.lower`, or read from its file.
    """
    copy = model.clone()
    _attach(copy, host=True)
    return copy


def _attach(model: ir.Model, *, host: bool) -> None:
    called = {(node.domain, node.op_type) for node in model.graph}
    for op in ALL:
        if (op.domain, op.name) in called:
            function = op.function(host=host)
            function.opset_imports[""] = model.opset_imports[""]
            model.functions[function.identifier()] = function
            model.opset_imports[op.domain] = 1
