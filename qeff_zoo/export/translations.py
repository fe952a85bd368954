# SPDX-License-Identifier: Apache-2.0
"""Translations of torch ops to nodes of the portable graph: ours as semantic ops, and a few of torch's own."""

import math
from collections.abc import Callable
from typing import Any

import torch

from qeff_zoo.graph import semantic
from qeff_zoo.graph.semantic.domains import SEMANTIC as DOMAIN
from qeff_zoo.graph.semantic.experts import EXPERTS
from qeff_zoo.graph.semantic.recurrence import LINEAR_RECURRENCE

from . import ops  # noqa: F401  (defines torch.ops.qeff_zoo)


def table() -> dict[Any, Callable[..., Any]]:
    """Torch ops to ONNX nodes, for `torch.onnx.export(custom_translation_table=…)`; registers the schemas."""
    import onnxscript

    _register_schemas()
    op = onnxscript.values.Opset(DOMAIN, 1)
    standard = onnxscript.opset18

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        if len(weight.shape) == 1:
            return standard.MatMul(x, weight)
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
        return getattr(op, name)(*given, heads=int(value.shape[2]), groups=int(key.shape[2]))

    def window(before: Any, positions: Any, new: Any) -> Any:
        channels, kernel = (int(size) for size in before.shape[1:])
        return op.ConvolutionWindow(before, positions, new, channels=channels, kernel=kernel)

    def normalize(x: Any, weight: Any, epsilon: float, offset: float) -> Any:
        return op.RMSNorm(x, weight, epsilon=epsilon, offset=offset)

    def normalize_last(x: Any, shape: Any, weight: Any = None, epsilon: float | None = None) -> Any:
        epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
        if weight is not None and len(shape) == 1:
            return op.RMSNorm(x, weight, epsilon=epsilon, offset=0.0)
        axes: Any = standard.Constant(value_ints=[*range(-len(shape), 0)])
        mean = standard.ReduceMean(standard.Mul(x, x), axes)
        least: Any = standard.Constant(value_float=epsilon)
        even = standard.CastLike(least, x)
        normal = standard.Div(x, standard.Sqrt(standard.Add(mean, even)))
        return normal if weight is None else standard.Mul(normal, weight)

    ours = torch.ops.qeff_zoo
    return {
        torch.ops.aten.linear.default: linear,
        torch.ops.aten._weight_norm.default: _weight_norm,
        torch.ops.aten.argsort.default: _argsort,
        torch.ops.aten.chunk.default: _chunk,
        torch.ops.aten.gelu.default: _gelu,
        torch.ops.aten.square.default: lambda x: standard.Mul(x, x),
        torch.ops.aten.outer.default: _outer,
        torch.ops.aten.rms_norm.default: normalize_last,
        torch.ops.aten.reshape_as.default: lambda x, like: standard.Reshape(
            x, standard.Shape(like)
        ),
        torch.ops.aten.nonzero_numpy.default: _nonzero,
        torch.ops.aten.rsub.Scalar: lambda x, number: standard.Sub(standard.CastLike(number, x), x),
        ours.rms_norm.default: normalize,
        ours.lora.default: lambda *inputs: _lora(op, *inputs),
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
    """Multiply in the order that ONNX Runtime fuses into one kernel."""
    from onnxscript import opset18 as op

    if approximate == "tanh":
        cubic = op.Mul(op.Pow(x, 3.0), 0.044715)  # type: ignore[type-var]
        inner = op.Tanh(op.Mul(op.Add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        inner = op.Erf(op.Div(x, math.sqrt(2)))
    return op.Mul(op.Mul(x, 0.5), op.Add(inner, 1.0))


def _outer(x: Any, y: Any) -> Any:
    """Multiply in the wider type, as torch does."""
    from onnxscript import opset18 as op

    last: Any = op.Constant(value_ints=[-1])
    column = op.Unsqueeze(x, last)
    if x.dtype == y.dtype:
        return op.Mul(column, y)
    if x.dtype.itemsize > y.dtype.itemsize:
        return op.Mul(column, op.CastLike(y, x))
    return op.Mul(op.CastLike(column, y), y)


def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    """Split into equal parts; ONNX Runtime's Split takes no axis of size 0, such as that of omitted experts."""
    from onnxscript import opset18 as op

    if x.shape[dim] == 0 or chunks == 1:
        return [op.Identity(x) for _ in range(chunks)]
    return op.Split(x, axis=dim, num_outputs=chunks)


def _argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    from onnxscript import opset18 as op

    axis: Any = op.Constant(value_ints=[dim])
    size = op.Gather(op.Shape(x), axis)
    return op.TopK(x, size, axis=dim, largest=int(descending))[1]


def _weight_norm(direction: Any, length: Any, dim: int = 0) -> Any:
    from onnxscript import opset18 as op

    others = [axis for axis in range(len(direction.shape)) if axis != dim]
    axes: Any = op.Constant(value_ints=others)
    return op.Mul(direction, op.Div(length, op.ReduceL2(direction, axes, keepdims=1)))


def _nonzero(x: Any) -> Any:
    from onnxscript import opset18 as op

    axes = len(x.shape)
    indices: Any = op.NonZero(x)
    parts: Any = [indices] if axes == 1 else op.Split(indices, axis=0, num_outputs=axes)
    first: Any = op.Constant(value_ints=[0])
    return [op.Squeeze(part, first) for part in parts]


def _lora(ours: Any, y: Any, x: Any, a: Any, b: Any, ids: Any) -> Any:
    """Add the adapters' outputs row by row; tokens are assigned to rows if all are flattened, as in routers."""
    from onnxscript import opset18 as op

    if len(x.shape) == 3 and x.shape[0] == ids.shape[0]:
        return ours.Lora(y, x, a, b, ids)
    batch, all_ = op.Shape(ids, start=0, end=1), op.Constant(value_ints=[-1])
    rows = []
    for one in (y, x):
        sizes: list[Any] = [batch, all_, op.Shape(one, start=-1)]
        shape: Any = op.Concat(*sizes, axis=0)
        rows.append(op.Reshape(one, shape))
    return op.Reshape(ours.Lora(*rows, a, b, ids), op.Shape(y))


def _register_schemas() -> None:
    import onnx

    schema = onnx.defs.OpSchema
    tensor_types = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(int64)"]
    for op in semantic.ALL:
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
