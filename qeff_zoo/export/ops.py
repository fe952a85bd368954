# SPDX-License-Identifier: Apache-2.0
"""Semantic ops: what a target may lower as one piece.

Each op stands here once, three ways side by side: its torch reference (which runs, so that a transformed model can be
compared with Hugging Face in PyTorch), its fake for tracing, and the body of the ONNX function that makes the portable
graph run in any ONNX runtime. In comments: B batch, S new tokens, C cache rows, H heads, G KV heads, D head size.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qeff_zoo.export.attention_ops import (
    ATTENTION,
    CAUSAL_MASK,
    CONTEXT_READ,
    HELD_MASK,
    SINK_ATTENTION,
    SOFTCAP_ATTENTION,
    WINDOW_MASK,
)
from qeff_zoo.export.domains import OPSET
from qeff_zoo.export.domains import SEMANTIC as DOMAIN
from qeff_zoo.export.experts_ops import EXPERTS, INTERLEAVED_EXPERTS, ROUTED_LINEAR
from qeff_zoo.export.recurrence_ops import DELTA_RECURRENCE, LINEAR_RECURRENCE
from qeff_zoo.export.semantic_op import SemanticOp
from qeff_zoo.export.state_ops import CONVOLUTION_WINDOW, STATE_BEFORE

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


# --- RMS norm: x (…, K), weight (K) ---
@torch.library.custom_op("qeff_zoo::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, epsilon: float, offset: float) -> Tensor:
    """Normalize by the root mean square in float32 and scale by `weight + offset`."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * (weight.float() + offset)).to(x.dtype)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float, offset: float) -> Tensor:
    return torch.empty_like(x)


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


# --- cache write: new (B, G, S, D) into past (B, G, C, D) at position_ids (B, S); -1 writes nothing ---
def _write(past: Tensor, slots: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    present = past.clone()
    valid = position_ids >= 0
    row, column = valid.nonzero(as_tuple=True)
    present[slots[row, 0], :, position_ids[row, column]] = new.transpose(1, 2)[row, column].to(
        past.dtype
    )
    return present


@torch.library.custom_op("qeff_zoo::cache_write", mutates_args=())
def cache_write(past: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    """Return `past` with the new tokens written at their positions; row b writes to cache row b."""
    return _write(past, torch.arange(len(new), device=new.device)[:, None], position_ids, new)


@cache_write.register_fake
def _(past: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    return torch.empty_like(past)


@torch.library.custom_op("qeff_zoo::slot_write", mutates_args=())
def slot_write(past: Tensor, batch_index: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    """As `cache_write`, into the cache slot that `batch_index` (B, 1) names for each row."""
    return _write(past, batch_index, position_ids, new)


@slot_write.register_fake
def _(past: Tensor, batch_index: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    return torch.empty_like(past)


# A padding column repeats its row's newest token, so that every index is valid and equal indices carry equal values;
# a row of padding alone writes back what it read.
_WRITE = """
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        axis0 = Constant <value_ints = [0]> ()
        axis1 = Constant <value_ints = [1]> ()
        axis2 = Constant <value_ints = [2]> ()
        axis3 = Constant <value_ints = [3]> ()
        inner = Constant <value_ints = [1, 2]> ()
        outer = Constant <value_ints = [2, 3]> ()
        columns_shape = Shape <start = 1, end = 2> (position_ids)
        columns_count = Squeeze (columns_shape, axis0)
        columns = Range (zero, columns_count, one)
        newest = ReduceMax <keepdims = 1> (position_ids, axis1)
        newest_column = ArgMax <axis = 1, keepdims = 1> (position_ids)
        padding = Less (position_ids, zero)
        safe_newest = Max (newest, zero)
        rows = Where (padding, safe_newest, position_ids)
        source = Where (padding, newest_column, columns)
        source_index = Unsqueeze (source, axis2)
        heads_shape = Shape <start = 1, end = 2> (past)
        heads_count = Squeeze (heads_shape, axis0)
        heads = Range (zero, heads_count, one)
        by_row = Unsqueeze (rows, axis2)
        index_shape = Concat <axis = 0> (rows_shape, heads_shape)
        by_slot = Unsqueeze (slots, inner)
        slot_index = Expand (by_slot, index_shape)
        head_index = Expand (heads, index_shape)
        row_index = Expand (by_row, index_shape)
        slot_last = Unsqueeze (slot_index, axis3)
        head_last = Unsqueeze (head_index, axis3)
        row_last = Unsqueeze (row_index, axis3)
        indices = Concat <axis = 3> (slot_last, head_last, row_last)
        tokens = Transpose <perm = [0, 2, 1, 3]> (new)
        picked = GatherND <batch_dims = 1> (tokens, source_index)
        picked_like = CastLike (picked, past)
        old = GatherND (past, indices)
        empty = Less (newest, zero)
        idle = Unsqueeze (empty, outer)
        updates = Where (idle, old, picked_like)
        present = ScatterND (past, indices, updates)
    }"""

CACHE_WRITE = SemanticOp(
    name="CacheWrite",
    inputs=3,
    body="""
    CacheWrite (past, position_ids, new) => (present) {
        rows_shape = Shape (position_ids)
        batch_shape = Shape <start = 0, end = 1> (position_ids)
        batch_axis = Constant <value_ints = [0]> ()
        batch_count = Squeeze (batch_shape, batch_axis)
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        slots = Range (first, batch_count, step)"""
    + _WRITE,
)
SLOT_WRITE = SemanticOp(
    name="SlotWrite",
    inputs=4,
    body="""
    SlotWrite (past, batch_index, position_ids, new) => (present) {
        rows_shape = Shape (position_ids)
        slot_axis = Constant <value_ints = [1]> ()
        slots = Squeeze (batch_index, slot_axis)"""
    + _WRITE,
)


# --- slot read: the cache rows of a batch, (slots, G, C, D) and batch_index (B, 1) -> (B, G, C, D) ---
@torch.library.custom_op("qeff_zoo::slot_read", mutates_args=())
def slot_read(cache: Tensor, batch_index: Tensor) -> Tensor:
    """Return the cache slots that `batch_index` names."""
    return cache[batch_index[:, 0]]


@slot_read.register_fake
def _(cache: Tensor, batch_index: Tensor) -> Tensor:
    return cache.new_empty(batch_index.shape[0], *cache.shape[1:])


SLOT_READ = SemanticOp(
    name="SlotRead",
    inputs=2,
    body="""
    SlotRead (cache, batch_index) => (rows) {
        slot_axis = Constant <value_ints = [1]> ()
        slots = Squeeze (batch_index, slot_axis)
        rows = Gather <axis = 0> (cache, slots)
    }""",
)


# --- slot replace: rows (B, …) become the slots that batch_index (B, 1) names, of past (slots, …) ---
@torch.library.custom_op("qeff_zoo::slot_replace", mutates_args=())
def slot_replace(past: Tensor, batch_index: Tensor, rows: Tensor) -> Tensor:
    """Return `past` with whole slots replaced."""
    present = past.clone()
    present[batch_index[:, 0]] = rows.to(past.dtype)
    return present


@slot_replace.register_fake
def _(past: Tensor, batch_index: Tensor, rows: Tensor) -> Tensor:
    return torch.empty_like(past)


SLOT_REPLACE = SemanticOp(
    name="SlotReplace",
    inputs=3,
    body="""
    SlotReplace (past, batch_index, rows) => (present) {
        rows_like = CastLike (rows, past)
        present = ScatterND (past, batch_index, rows_like)
    }""",
)


ALL = (
    LINEAR,
    RMS_NORM,
    CACHE_WRITE,
    SLOT_WRITE,
    SLOT_READ,
    SLOT_REPLACE,
    STATE_BEFORE,
    LINEAR_RECURRENCE,
    DELTA_RECURRENCE,
    CONVOLUTION_WINDOW,
    CONTEXT_READ,
    CAUSAL_MASK,
    WINDOW_MASK,
    HELD_MASK,
    ATTENTION,
    SOFTCAP_ATTENTION,
    SINK_ATTENTION,
    ROUTED_LINEAR,
    EXPERTS,
    INTERLEAVED_EXPERTS,
)


def translations() -> dict[Any, Callable[..., Any]]:
    """Torch ops to ONNX nodes, for `torch.onnx.export(custom_translation_table=…)`; registers the schemas."""
    import onnxscript

    _register_schemas()
    op = onnxscript.values.Opset(DOMAIN, 1)
    standard = onnxscript.opset18

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        product = op.Linear(x, weight)
        return product if bias is None else standard.Add(product, bias)

    def attend(query: Any, key: Any, value: Any, mask: Any, scale: float, softcap: float) -> Any:
        given: dict[str, Any] = {"scale": scale, "num_heads": int(query.shape[1])}
        if softcap:
            return op.SoftcapAttention(query, key, value, mask, **given, softcap=softcap)
        return op.Attention(query, key, value, mask, **given)

    def attend_with_sinks(
        query: Any, key: Any, value: Any, mask: Any, sinks: Any, scale: float
    ) -> Any:
        given = {"scale": scale, "num_heads": int(query.shape[1])}
        return op.SinkAttention(query, key, value, mask, sinks, **given)

    def mask(positions: Any, ctx_len: Any, window: int) -> Any:
        if window:
            return op.WindowMask(positions, ctx_len, window=window)
        return op.CausalMask(positions, ctx_len)

    def held(positions: Any, keys: Any, window: int) -> Any:
        return op.HeldMask(positions, keys, window=window)

    def mix(*given: Any) -> Any:
        *tensors, alpha, limit, offset = given
        name = "Experts" if len(tensors) == EXPERTS.inputs else "InterleavedExperts"
        chosen = {"k": int(tensors[1].shape[1]), "alpha": alpha, "limit": limit, "offset": offset}
        return getattr(op, name)(*tensors, **chosen)

    def recur(*given: Any) -> Any:
        _, _, key, value, *_ = given
        name = "LinearRecurrence" if len(given) == LINEAR_RECURRENCE.inputs else "DeltaRecurrence"
        counts = {"heads": int(value.shape[2]), "groups": int(key.shape[2])}
        return getattr(op, name)(*given, **counts)

    def window(before: Any, positions: Any, new: Any) -> Any:
        channels, kernel = (int(size) for size in before.shape[1:])
        return op.ConvolutionWindow(before, positions, new, channels=channels, kernel=kernel)

    def normalize(x: Any, weight: Any, epsilon: float, offset: float) -> Any:
        return op.RMSNorm(x, weight, epsilon=epsilon, offset=offset)

    ours = torch.ops.qeff_zoo
    return {
        torch.ops.aten.linear.default: linear,
        torch.ops.aten.gelu.default: _gelu,
        ours.rms_norm.default: normalize,
        ours.cache_write.default: lambda *inputs: op.CacheWrite(*inputs),
        ours.slot_write.default: lambda *inputs: op.SlotWrite(*inputs),
        ours.slot_read.default: lambda *inputs: op.SlotRead(*inputs),
        ours.slot_replace.default: lambda *inputs: op.SlotReplace(*inputs),
        ours.state_before.default: lambda *inputs: op.StateBefore(*inputs),
        ours.linear_recurrence.default: recur,
        ours.delta_recurrence.default: recur,
        ours.convolution_window.default: window,
        ours.context_read.default: lambda *inputs: op.ContextRead(*inputs),
        ours.causal_mask.default: mask,
        ours.held_mask.default: held,
        ours.attention.default: attend,
        ours.sink_attention.default: attend_with_sinks,
        ours.routed_linear.default: lambda *inputs: op.RoutedLinear(*inputs),
        ours.experts.default: mix,
        ours.interleaved_experts.default: mix,
    }


def _gelu(x: Any, approximate: str = "none") -> Any:
    """Multiply in the order that ONNX Runtime knows as one kernel."""
    from onnxscript import opset18 as op

    if approximate == "tanh":
        cubic = op.Mul(op.Pow(x, 3.0), 0.044715)  # type: ignore[type-var]
        inner = op.Tanh(op.Mul(op.Add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        inner = op.Erf(op.Div(x, math.sqrt(2)))
    return op.Mul(op.Mul(x, 0.5), op.Add(inner, 1.0))


def _register_schemas() -> None:
    import onnx

    schema = onnx.defs.OpSchema
    tensor_types = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(int64)"]
    for op in ALL:
        if onnx.defs.has(op.name, DOMAIN):
            continue
        onnx.defs.register_schema(
            schema(
                op.name,
                DOMAIN,
                1,
                inputs=[schema.FormalParameter(f"x{i}", f"T{i}") for i in range(op.inputs)],
                outputs=[
                    schema.FormalParameter(f"y{i}", "tensor(float)" if like is None else f"T{like}")
                    for i, like in enumerate(op.outputs)
                ],
                type_constraints=[(f"T{i}", tensor_types, "") for i in range(op.inputs)],
                attributes=[
                    *(schema.Attribute(name, schema.AttrType.FLOAT, "") for name in op.attributes),
                    *(schema.Attribute(name, schema.AttrType.INT, "") for name in op.integers),
                ],
            )
        )


def functions() -> list[Any]:
    """Bodies of all semantic ops as `onnx_ir.Function`s."""
    import onnx.parser
    import onnx_ir as ir

    header = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>'
    return [ir.from_proto(onnx.parser.parse_function(header + op.body)) for op in ALL]
