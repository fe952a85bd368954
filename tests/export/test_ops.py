# SPDX-License-Identifier: Apache-2.0
"""Every semantic op three ways: its torch reference, its ONNX function in ONNX Runtime, and a plain loop."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from qeff_zoo.export import translations
from qeff_zoo.export.transforms.attention import causal_window
from qeff_zoo.graph import semantic
from qeff_zoo.graph.semantic.domains import OPSET, SEMANTIC
from qeff_zoo.graph.semantic.op import UNBOUNDED
from qeff_zoo.graph.semantic.rotary import name_of

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
OURS = torch.ops.qeff_zoo
FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
some = settings(max_examples=example_count(60))


@cache
def session(
    name: str, attributes: tuple[tuple[str, float], ...] = (), dtype: ir.DataType = FLOAT
) -> onnxruntime.InferenceSession:
    """Open a graph of one call of an op's function, the body as the exporter attaches it."""
    op = next(op for op in semantic.ALL if op.name == name)
    function = next(function for function in semantic.functions() if function.name == name)
    integers = {"position_ids", "batch_index", "positions", "key_positions"}
    integers |= {"ctx_len", "comp_ctx_lengths", "index", "ids"}
    inputs = [
        ir.Value(
            name=value.name,
            shape=ir.Shape([None] * _RANKS[name][i]),
            type=ir.TensorType(INT64 if value.name in integers else dtype),
        )
        for i, value in enumerate(function.inputs)
    ]
    assert len(inputs) == op.inputs
    node = ir.node(name, inputs, dict(attributes), domain=SEMANTIC, num_outputs=len(op.outputs))
    for i, (output, like) in enumerate(zip(node.outputs, op.outputs, strict=True)):
        output.name, output.type = f"y{i}", ir.TensorType(dtype)
        output.shape = ir.Shape([None] * (4 if like is None else _RANKS[name][like]))
    graph = ir.Graph(
        inputs,
        node.outputs,
        nodes=[node],
        opset_imports={"": OPSET, SEMANTIC: 1},
        name="one",
    )
    model = ir.Model(graph, ir_version=10, functions=[function])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


_RANKS = {
    "Linear": (3, 2),
    "Lora": (3, 3, 3, 3, 2),
    "RMSNorm": (3, 1),
    "CacheWrite": (4, 2, 4),
    "SlotWrite": (4, 2, 2, 4),
    "SlotRead": (4, 2),
    "SlotReplace": (3, 2, 3),
    "ContextRead": (4, 1),
    "StateBefore": (3, 2),
    "ConvolutionWindow": (3, 2, 3),
    "LinearRecurrence": (4, 4, 4, 4, 4),
    "DeltaRecurrence": (4, 4, 4, 4, 4, 3),
    "CausalMask": (2, 0),
    "WindowMask": (2, 0),
    "HeldMask": (2, 2),
    "RotaryEmbedding": (4, 3, 3),
    "PartialRotaryEmbedding": (4, 3, 3),
    "InterleavedRotaryEmbedding": (4, 3, 3),
    "PartialInterleavedRotaryEmbedding": (4, 3, 3),
    "SinkAttention": (4, 4, 4, 4, 1),
    "Attention": (4, 4, 4, 4),
    "SoftcapAttention": (4, 4, 4, 4),
    "RoutedLinear": (3, 2, 3),
    "Experts": (2, 2, 2, 3, 3),
    "InterleavedExperts": (2, 2, 2, 3, 2, 3, 2),
}


def all_in_onnx(name: str, *arrays: Array, **attributes: float) -> list[Array]:
    one = session(name, tuple(attributes.items()))
    names = [value.name for value in one.get_inputs()]
    return one.run(None, dict(zip(names, arrays, strict=True)))


def in_onnx(name: str, *arrays: Array, **attributes: float) -> Array:
    return all_in_onnx(name, *arrays, **attributes)[0]


def in_torch(op: Callable[..., Any], *arguments: Any) -> Array:
    tensors = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return op(*tensors).numpy()


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_op_has_a_session_here() -> None:
    assert set(_RANKS) == {op.name for op in semantic.ALL}
    assert {function.name for function in semantic.functions()} == set(_RANKS)


# --- adapters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[[2], [0]], [[0], [0]], [[1], [2]]])
def test_lora_adds_to_each_row_what_its_slot_has(ids: list[list[int]]) -> None:
    y, x, a, b = normal(0, 2, 3, 5), normal(1, 2, 3, 4), normal(2, 3, 4, 2), normal(3, 3, 2, 5)
    a[0] = b[0] = 0  # the model as it is
    slots = np.array(ids)
    expected = np.stack([y[i] + x[i] @ a[slot] @ b[slot] for i, (slot,) in enumerate(ids)])
    np.testing.assert_allclose(in_onnx("Lora", y, x, a, b, slots), expected, atol=1e-5)
    np.testing.assert_allclose(in_torch(OURS.lora, y, x, a, b, slots), expected, atol=1e-5)
    flat, as_heads = (y.reshape(6, 5), x.reshape(6, 4)), (y[:, :, None], x[:, :, None])
    for pair, shape in ((flat, (6, 5)), (as_heads, (2, 3, 1, 5))):
        found = in_torch(OURS.lora, *pair, a, b, slots)
        np.testing.assert_allclose(found, expected.reshape(shape), atol=1e-5)


# --- rotary embedding ----------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [6, 9])
def test_rotary_embedding(width: int, interleaved: bool) -> None:
    x, angles = normal(0, 2, 3, 5, width), normal(1, 2, 5, 3)
    cos, sin = np.cos(angles), np.sin(angles)
    expected = x.copy()
    for pair in range(3):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 3)
        c, s = cos[:, None, :, pair], sin[:, None, :, pair]
        expected[..., i] = x[..., i] * c - x[..., j] * s
        expected[..., j] = x[..., j] * c + x[..., i] * s
    name = name_of(interleaved=interleaved, partial=width > 6)
    attributes = {"interleaved": int(interleaved), "rotary_embedding_dim": 6}
    np.testing.assert_allclose(in_onnx(name, x, cos, sin, **attributes), expected, atol=1e-6)


# --- linear and norm -----------------------------------------------------------------------------


@some
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_linear(batch: int, seq: int, inner: int, outer: int) -> None:
    x, weight = normal(0, batch, seq, inner), normal(1, outer, inner)
    expected = np.zeros((batch, seq, outer))
    for b, s, n in np.ndindex(expected.shape):
        expected[b, s, n] = sum(float(x[b, s, k]) * float(weight[n, k]) for k in range(inner))
    np.testing.assert_allclose(in_onnx("Linear", x, weight), expected, rtol=1e-5, atol=1e-5)
    linear = torch.nn.functional.linear
    np.testing.assert_allclose(in_torch(linear, x, weight), expected, rtol=1e-5, atol=1e-5)


@some
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([1e-6, 1e-5, 0.5]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_rms_norm(
    batch: int, seq: int, width: int, epsilon: float, offset: float, size: float
) -> None:
    x, weight = size * normal(0, batch, seq, width), normal(1, width)
    expected = np.zeros(x.shape)
    for b, s in np.ndindex(batch, seq):
        mean = sum(float(value) ** 2 for value in x[b, s]) / width
        for k in range(width):
            expected[b, s, k] = x[b, s, k] / math.sqrt(mean + epsilon) * (weight[k] + offset)
    got = in_onnx("RMSNorm", x, weight, epsilon=epsilon, offset=offset)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    got = in_torch(OURS.rms_norm, x, weight, epsilon, offset)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_half_precision_is_computed_in_float32() -> None:
    """300 squared is beyond float16."""
    x, weight = np.full((1, 1, 8), 300, np.float16), np.ones(8, np.float16)
    attributes = (("epsilon", 1e-6), ("offset", 0.0))
    got = session("RMSNorm", attributes, ir.DataType.FLOAT16).run(None, {"x": x, "weight": weight})
    assert got[0].dtype == np.float16
    np.testing.assert_array_equal(got[0], np.ones_like(x))
    np.testing.assert_array_equal(in_torch(OURS.rms_norm, x, weight, 1e-6, 0.0), np.ones_like(x))


# --- the cache -----------------------------------------------------------------------------------


@st.composite
def rows_of_positions(draw: Any, batch: int, seq: int, ctx: int) -> Array:
    """Draw rows of distinct positions in any order, any number of them -1."""
    rows = []
    for _ in range(batch):
        real = draw(st.lists(st.integers(0, ctx - 1), unique=True, max_size=min(seq, ctx)))
        rows.append(draw(st.permutations(real + [-1] * (seq - len(real)))))
    return np.array(rows, np.int64).reshape(batch, seq)


@st.composite
def writes(draw: Any) -> tuple[Array, Array, Array, Array]:
    """Draw a cache, slots, positions and new tokens."""
    batch, seq, ctx = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 8))
    slots = draw(st.integers(batch, batch + 3))
    heads, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    index = draw(st.permutations(range(slots)))[:batch]
    positions = draw(rows_of_positions(batch, seq, ctx))
    past, new = normal(0, slots, heads, ctx, head_dim), normal(1, batch, heads, seq, head_dim)
    return past, np.array(index, np.int64)[:, None], positions, new


def written(past: Array, slots: Array, positions: Array, new: Array) -> Array:
    present = past.copy()
    for b, s in np.ndindex(positions.shape):
        if positions[b, s] >= 0:
            for g in range(new.shape[1]):
                present[slots[b, 0], g, positions[b, s]] = new[b, g, s]
    return present


@some
@given(writes())
def test_cache_write(case: tuple[Array, Array, Array, Array]) -> None:
    past, _, positions, new = case
    past = past[: len(new)]
    expected = written(past, np.arange(len(new))[:, None], positions, new)
    np.testing.assert_array_equal(in_onnx("CacheWrite", past, positions, new), expected)
    np.testing.assert_array_equal(in_torch(OURS.cache_write, past, positions, new), expected)


@some
@given(writes())
def test_slot_write(case: tuple[Array, Array, Array, Array]) -> None:
    past, slots, positions, new = case
    expected = written(past, slots, positions, new)
    np.testing.assert_array_equal(in_onnx("SlotWrite", past, slots, positions, new), expected)
    np.testing.assert_array_equal(in_torch(OURS.slot_write, past, slots, positions, new), expected)


@pytest.mark.parametrize("seq", [1, 3])
def test_rows_of_padding_alone_write_nothing(seq: int) -> None:
    past, new = normal(0, 3, 2, 5, 4), normal(1, 2, 2, seq, 4)
    nothing = np.full((2, seq), -1)
    slots = np.array([[2], [0]])
    np.testing.assert_array_equal(in_onnx("CacheWrite", past[:2], nothing, new), past[:2])
    np.testing.assert_array_equal(in_onnx("SlotWrite", past, slots, nothing, new), past)
    np.testing.assert_array_equal(in_torch(OURS.slot_write, past, slots, nothing, new), past)


def test_what_lies_in_the_cache_does_not_matter() -> None:
    """A fresh buffer may hold anything, infinities and NaN included."""
    past, new = np.full((1, 1, 4, 2), np.nan, np.float32), normal(0, 1, 1, 3, 2)
    positions = np.array([[-1, 2, 0]])
    expected = written(past, np.array([[0]]), positions, new)
    assert np.isnan(expected).sum() == 4
    np.testing.assert_array_equal(in_onnx("CacheWrite", past, positions, new), expected)


def test_write_leaves_its_input_alone() -> None:
    past = torch.zeros(1, 1, 4, 2)
    OURS.cache_write(past, torch.tensor([[1]]), torch.ones(1, 1, 1, 2))
    assert not past.any()


@some
@given(st.data())
def test_slot_read(data: st.DataObject) -> None:
    slots, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    index = data.draw(st.lists(st.integers(0, slots - 1), min_size=batch, max_size=batch))
    cache_, chosen = normal(0, slots, 2, 3, 4), np.array(index, np.int64)[:, None]
    expected = np.stack([cache_[i] for i in index])
    np.testing.assert_array_equal(in_onnx("SlotRead", cache_, chosen), expected)
    np.testing.assert_array_equal(in_torch(OURS.slot_read, cache_, chosen), expected)


# --- attention -----------------------------------------------------------------------------------


def attended(
    query: Array, key: Array, value: Array, mask: Array, scale: float, softcap: float
) -> Array:
    batch, heads, seq, _ = query.shape
    groups, ctx = key.shape[1:3]
    mask = np.broadcast_to(mask, (batch, heads, seq, ctx))
    mixed = np.zeros((batch, seq, heads, value.shape[3]))
    for b, h, s in np.ndindex(batch, heads, seq):
        g = h // (heads // groups)
        scores = np.array([float(query[b, h, s] @ key[b, g, c]) * scale for c in range(ctx)])
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores = scores + mask[b, h, s]
        weights = np.exp(scores - scores.max())
        for c in range(ctx):
            mixed[b, s, h] += weights[c] / weights.sum() * value[b, g, c]
    return mixed


@st.composite
def attentions(draw: Any) -> tuple[Array, Array, Array, Array]:
    batch, seq, ctx = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim, value_dim = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    heads = groups * per_group
    shape = draw(st.sampled_from([(1, 1), (batch, 1), (1, heads), (batch, heads)]))
    allowed = np.random.default_rng(3).random((*shape, seq, ctx)) < 0.6
    allowed[..., 0] = True
    mask = np.where(allowed, 0, np.finfo(np.float32).min).astype(np.float32)
    query = normal(0, batch, heads, seq, head_dim)
    key, value = (
        normal(1, batch, groups, ctx, head_dim),
        normal(2, batch, groups, ctx, value_dim),
    )
    return query, key, value, mask


@some
@given(attentions(), st.sampled_from([0.25, 1.0, 2.0]), st.sampled_from([0.0, 0.5, 30.0]))
def test_attention(case: tuple[Array, Array, Array, Array], scale: float, softcap: float) -> None:
    expected = attended(*case, scale, softcap)
    if softcap:
        got = in_onnx(
            "SoftcapAttention", *case, num_heads=case[0].shape[1], scale=scale, softcap=softcap
        )
    else:
        got = in_onnx("Attention", *case, num_heads=case[0].shape[1], scale=scale)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)
    got = in_torch(OURS.attention, *case, scale, softcap)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)


def test_softcap_comes_before_the_mask() -> None:
    """Capped afterwards, what is masked would come back."""
    query, key = normal(0, 1, 1, 1, 4), normal(1, 1, 1, 2, 4)
    value = np.array([[[[1.0], [100.0]]]], np.float32)
    mask = np.array([[[[0, np.finfo(np.float32).min]]]], np.float32)
    got = in_onnx(
        "SoftcapAttention",
        query,
        key,
        value,
        mask,
        num_heads=query.shape[1],
        scale=1.0,
        softcap=2.0,
    )
    assert got.item() == 1.0
    assert in_torch(OURS.attention, query, key, value, mask, 1.0, 2.0).item() == 1.0


def test_a_row_without_anything_to_look_at_stays_finite() -> None:
    query, key, value = normal(0, 1, 2, 1, 4), normal(1, 1, 2, 3, 4), normal(2, 1, 2, 3, 4)
    mask = np.full((1, 1, 1, 3), np.finfo(np.float32).min)
    got = in_onnx("Attention", query, key, value, mask, num_heads=query.shape[1], scale=1.0)
    assert np.isfinite(got).all()
    assert np.isfinite(in_torch(OURS.attention, query, key, value, mask, 1.0, 0.0)).all()


@some
@given(attentions(), st.sampled_from([0.3, 1.0]))
def test_sink_attention(case: tuple[Array, Array, Array, Array], scale: float) -> None:
    """A sink is one key more for every head, of value 0, that every query sees with the sink's own score."""
    query, key, value, mask = case
    sinks = normal(9, query.shape[1])
    expected = np.zeros((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))
    shared = query.shape[1] // key.shape[1]
    for b, h, s in np.ndindex(query.shape[:3]):
        keys, values = key[b, h // shared].astype(float), value[b, h // shared].astype(float)
        recorded = mask[min(b, len(mask) - 1), min(h, mask.shape[1] - 1), s].astype(float)
        scores = np.append(keys @ query[b, h, s] * scale + recorded, sinks[h])
        weights = np.exp(scores - scores.max())
        expected[b, s, h] = (weights / weights.sum())[:-1] @ values
    got = in_onnx("SinkAttention", *case, sinks, num_heads=case[0].shape[1], scale=scale)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)
    got = in_torch(OURS.sink_attention, *case, sinks, scale)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)


# --- experts --------------------------------------------------------------------------------------


@some
@given(
    tokens=st.integers(1, 5),
    experts=st.integers(1, 4),
    hidden=st.integers(1, 6),
    inner=st.integers(1, 5),
    gate=st.sampled_from([(1.0, UNBOUNDED, 0.0), (1.702, 0.7, 1.0)]),
    data=st.data(),
)
def test_experts(
    tokens: int,
    experts: int,
    hidden: int,
    inner: int,
    gate: tuple[float, float, float],
    data: st.DataObject,
) -> None:
    """Each token by itself, through its own experts alone; one that there is not gives nothing."""
    k = data.draw(st.integers(1, experts))
    random = np.random.default_rng(tokens)
    index = np.stack([random.permutation(experts + 1)[:k] for _ in range(tokens)])
    x, weights = normal(1, tokens, hidden), normal(2, tokens, k)
    gate_up, down = normal(3, experts, 2 * inner, hidden), normal(4, experts, hidden, inner)
    biases = normal(5, experts, 2 * inner), normal(6, experts, hidden)
    alpha, limit, offset = gate
    plain, biased = np.zeros((tokens, hidden)), np.zeros((tokens, hidden))
    for t, place in np.ndindex(index.shape):
        if (e := index[t, place]) == experts:
            continue
        for total, first, second in ((plain, 0.0, 0.0), (biased, biases[0][e], biases[1][e])):
            both = gate_up[e].astype(float) @ x[t] + first
            open_, up = np.minimum(both[:inner], limit), np.clip(both[inner:], -limit, limit)
            passed = open_ / (1 + np.exp(-alpha * open_)) * (up + offset)
            total[t] += weights[t, place] * (down[e].astype(float) @ passed + second)
    for rows in (x[:, None], normal(7, tokens, k, hidden)):  # one for all choices, or one for each
        each = np.zeros((tokens, k, 2 * inner))
        for t, place in np.ndindex(index.shape):
            if (e := index[t, place]) < experts:
                each[t, place] = gate_up[e].astype(float) @ rows[t, place % rows.shape[1]]
        for got in (
            in_onnx("RoutedLinear", rows, index, gate_up),
            in_torch(OURS.routed_linear, rows, index, gate_up),
        ):
            np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-4)
    chosen = {"k": k, "alpha": alpha, "limit": limit, "offset": offset}
    routed = x, index, weights
    for got in (
        in_onnx("Experts", *routed, gate_up, down, **chosen),
        in_torch(OURS.experts, *routed, gate_up, down, *gate),
    ):
        np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-4)
    in_turns = np.arange(2 * inner).reshape(2, inner).T.reshape(-1)
    turned = gate_up[:, in_turns].swapaxes(1, 2).copy(), biases[0][:, in_turns].copy()
    stored = (*turned, down.swapaxes(1, 2).copy(), biases[1])
    for got in (
        in_onnx("InterleavedExperts", *routed, *stored, **chosen),
        in_torch(OURS.interleaved_experts, *routed, *stored, *gate),
    ):
        np.testing.assert_allclose(got, biased, rtol=1e-4, atol=1e-4)


# --- recurrences ---------------------------------------------------------------------------------


@some
@given(
    batch=st.integers(1, 2),
    seq=st.integers(1, 4),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    width=st.integers(1, 5),
    columns=st.integers(1, 4),
    one_decay=st.booleans(),
    delta=st.booleans(),
)
def test_recurrences(
    batch: int,
    seq: int,
    groups: int,
    shared: int,
    width: int,
    columns: int,
    one_decay: bool,
    delta: bool,
) -> None:
    heads = groups * shared
    state = normal(0, batch, heads, width, columns)
    log_decay = -np.exp(2 * normal(1, batch, seq, heads, 1 if one_decay else width))
    log_decay[0, 0, 0] = -1000.0  # nothing is left
    key = normal(2, batch, seq, groups, width)
    value = normal(3, batch, seq, heads, columns)
    query = normal(4, *key.shape)
    rates = (normal(5, batch, seq, heads),) if delta else ()
    last, expected = state.astype(float), np.zeros(value.shape)
    for b, t, h in np.ndindex(batch, seq, heads):
        g = h // shared
        matrix = last[b, h] * np.exp(log_decay[b, t, h].astype(float))[:, None]
        row = value[b, t, h].astype(float)
        if delta:
            row = (row - key[b, t, g] @ matrix) * rates[0][b, t, h]
        last[b, h] = matrix + np.outer(key[b, t, g], row)
        expected[b, t, h] = query[b, t, g] @ last[b, h]
    name, op = (
        ("DeltaRecurrence", OURS.delta_recurrence)
        if delta
        else ("LinearRecurrence", OURS.linear_recurrence)
    )
    arrays = (state, log_decay, key, value, query, *rates)
    counts = {"heads": heads, "groups": groups}
    for found in (all_in_onnx(name, *arrays, **counts), op(*map(torch.from_numpy, arrays))):
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[1], last, rtol=1e-4, atol=1e-4)


# --- states that do not grow ---------------------------------------------------------------------


def test_state_before_is_nothing_for_rows_that_start() -> None:
    """Whatever an earlier request left there."""
    past = normal(0, 4, 2, 3)
    past[1] = np.nan
    positions = np.array([[5, 6], [-1, 0], [-1, -1], [7, -1]])
    expected = past.copy()
    expected[1] = 0
    np.testing.assert_array_equal(in_onnx("StateBefore", past, positions), expected)
    np.testing.assert_array_equal(in_torch(OURS.state_before, past, positions), expected)


@some
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_convolution_window(rows: list[tuple[int, int]], kernel: int, channels: int) -> None:
    """Rows have padding, tokens, padding; to the tokens it is as if there were none."""
    seq = max(1, *(early + count for early, count in rows))
    before, new = normal(0, len(rows), channels, kernel), normal(1, len(rows), channels, seq)
    positions = np.full((len(rows), seq), -1)
    for b, (early, count) in enumerate(rows):
        positions[b, early : early + count] = np.arange(8, 8 + count)
    arrays = (before, positions, new)
    for recorded, newest in (
        all_in_onnx("ConvolutionWindow", *arrays, channels=channels, kernel=kernel),
        OURS.convolution_window(*map(torch.from_numpy, arrays)),
    ):
        assert recorded.shape == (len(rows), channels, kernel + seq)
        for b, (early, count) in enumerate(rows):
            end = early + count
            expected = np.concatenate([before[b], new[b, :, early:end]], axis=1)
            if count:
                np.testing.assert_array_equal(recorded[b, :, early : kernel + end], expected)
            np.testing.assert_array_equal(newest[b], expected[:, count:])


def test_slots_are_replaced_whole() -> None:
    past, rows, slots = normal(0, 4, 2, 3), normal(1, 2, 2, 3), np.array([[3], [1]])
    expected = past.copy()
    expected[[3, 1]] = rows
    np.testing.assert_array_equal(in_onnx("SlotReplace", past, slots, rows), expected)
    np.testing.assert_array_equal(in_torch(OURS.slot_replace, past, slots, rows), expected)


# --- compute contexts ----------------------------------------------------------------------------


@some
@given(st.integers(1, 3), st.integers(1, 9), st.data())
def test_context_read(batch: int, ctx_len: int, data: st.DataObject) -> None:
    """Of `comp_ctx_lengths` the length alone counts."""
    cache = normal(0, batch, 2, ctx_len, 3)
    lengths = np.full(data.draw(st.integers(1, ctx_len)), data.draw(st.integers(-1, 99)))
    expected = cache[:, :, : len(lengths)]
    np.testing.assert_array_equal(in_onnx("ContextRead", cache, lengths), expected)
    np.testing.assert_array_equal(in_torch(OURS.context_read, cache, lengths), expected)


# --- masks ---------------------------------------------------------------------------------------


@some
@given(
    st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=1, max_size=3),
    st.integers(1, 14),
    st.integers(0, 14),
)
def test_causal_mask(rows: list[list[int]], ctx_len: int, window: int) -> None:
    positions = np.array(rows, np.int64)
    expected = np.full((len(rows), 1, 3, ctx_len), np.finfo(np.float32).min, np.float32)
    for b, s, key in np.ndindex(len(rows), 3, ctx_len):
        if key <= rows[b][s] and (not window or key > rows[b][s] - window):
            expected[b, 0, s, key] = 0
    np.testing.assert_array_equal(in_torch(OURS.causal_mask, positions, ctx_len, window), expected)
    size = np.array(ctx_len)
    got = (
        in_onnx("WindowMask", positions, size, window=window)
        if window
        else in_onnx("CausalMask", positions, size)
    )
    np.testing.assert_array_equal(got, expected)


@some
@given(
    st.lists(st.lists(st.integers(0, 12), min_size=2, max_size=2), min_size=2, max_size=2),
    st.lists(st.lists(st.integers(-1, 12), min_size=5, max_size=5), min_size=2, max_size=2),
    st.integers(1, 14),
)
def test_held_mask(rows: list[list[int]], held: list[list[int]], window: int) -> None:
    positions, keys = np.array(rows, np.int64), np.array(held, np.int64)
    expected = np.full((2, 1, 2, 5), np.finfo(np.float32).min, np.float32)
    for b, s, key in np.ndindex(2, 2, 5):
        if 0 <= held[b][key] <= rows[b][s] and held[b][key] > rows[b][s] - window:
            expected[b, 0, s, key] = 0
    np.testing.assert_array_equal(in_torch(OURS.held_mask, positions, keys, window), expected)
    np.testing.assert_array_equal(in_onnx("HeldMask", positions, keys, window=window), expected)


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        (causal_mask_function, 0),
        (sliding_window_causal_mask_function(1), 1),
        (sliding_window_causal_mask_function(4096), 4096),
        (sliding_window_causal_mask_function(100_003), 100_003),
        (sliding_window_bidirectional_mask_function(64), None),
        (chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.long)), None),
        (bidirectional_mask_function, None),
        (lambda b, h, q, k: k < q, None),
        (lambda b, h, q, k: (k <= q) & (q - k != 70_000), None),
        (lambda b, h, q, k: (k <= q) & (k != 0), None),
    ],
)
def test_masks_of_transformers_are_distinguished(
    mask: Callable[..., Any], window: int | None
) -> None:
    assert causal_window(mask) == window


# --- tracing -------------------------------------------------------------------------------------

_POSITIONS = torch.tensor([[0, 2, -1], [-1, -1, -1]])
_RECURRENCE = (
    torch.randn(2, 4, 6, 5),
    -torch.rand(2, 3, 4, 1),
    torch.randn(2, 3, 2, 6),
    torch.randn(2, 3, 4, 5),
    torch.randn(2, 3, 2, 6),
)
_ROUTED = torch.randn(3, 6), torch.tensor([[0, 3], [1, 0], [2, 1]]), torch.rand(3, 2)
EXAMPLES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lora": (
        OURS.lora,
        (
            torch.randn(2, 3, 5),
            torch.randn(2, 3, 6),
            torch.randn(4, 6, 2),
            torch.randn(4, 2, 5),
            torch.tensor([[3], [0]]),
        ),
    ),
    "rms_norm": (OURS.rms_norm, (torch.randn(2, 3, 8), torch.randn(8), 1e-6, 1.0)),
    "cache_write": (
        OURS.cache_write,
        (torch.randn(2, 2, 5, 4), _POSITIONS, torch.randn(2, 2, 3, 4)),
    ),
    "slot_write": (
        OURS.slot_write,
        (torch.randn(4, 2, 5, 4), torch.tensor([[3], [0]]), _POSITIONS, torch.randn(2, 2, 3, 4)),
    ),
    "slot_read": (OURS.slot_read, (torch.randn(4, 2, 5, 4), torch.tensor([[3], [0]]))),
    "slot_replace": (
        OURS.slot_replace,
        (torch.randn(4, 2, 5), torch.tensor([[3], [0]]), torch.randn(2, 2, 5)),
    ),
    "state_before": (OURS.state_before, (torch.randn(2, 4, 6), _POSITIONS)),
    "convolution_window": (
        OURS.convolution_window,
        (torch.randn(2, 4, 3), _POSITIONS, torch.randn(2, 4, 3)),
    ),
    "linear_recurrence": (OURS.linear_recurrence, _RECURRENCE),
    "delta_recurrence": (OURS.delta_recurrence, (*_RECURRENCE, torch.rand(2, 3, 4))),
    "context_read": (OURS.context_read, (torch.randn(2, 2, 5, 4), torch.zeros(3).long())),
    "routed_linear": (OURS.routed_linear, (_ROUTED[0][:, None], _ROUTED[1], torch.randn(4, 5, 6))),
    "experts": (
        OURS.experts,
        (*_ROUTED, torch.randn(4, 10, 6), torch.randn(4, 6, 5), 1.0, UNBOUNDED, 0.0),
    ),
    "interleaved_experts": (
        OURS.interleaved_experts,
        (
            *_ROUTED,
            torch.randn(4, 6, 10),
            torch.randn(4, 10),
            torch.randn(4, 5, 6),
            torch.randn(4, 6),
            1.702,
            7.0,
            1.0,
        ),
    ),
    "causal_mask": (OURS.causal_mask, (_POSITIONS.clamp(min=0), 5, 2)),
    "held_mask": (OURS.held_mask, (_POSITIONS.clamp(min=0), _POSITIONS, 2)),
    "sink_attention": (
        OURS.sink_attention,
        (
            torch.randn(2, 4, 3, 6),
            torch.randn(2, 2, 5, 6),
            torch.randn(2, 2, 5, 7),
            torch.randn(2, 1, 3, 5),
            torch.randn(4),
            0.5,
        ),
    ),
    "attention": (
        OURS.attention,
        (
            torch.randn(2, 4, 3, 6),
            torch.randn(2, 2, 5, 6),
            torch.randn(2, 2, 5, 7),
            torch.randn(2, 1, 3, 5),
            0.5,
            2.0,
        ),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_fake_agrees_with_the_reference(name: str) -> None:
    op, arguments = EXAMPLES[name]
    torch.library.opcheck(op.default, arguments, test_utils=("test_schema", "test_faketensor"))
    real = op(*arguments)
    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
    fake = op(*meta)
    for leaf, other in zip(tree_leaves(fake), tree_leaves(real), strict=True):
        assert (leaf.shape, leaf.dtype, leaf.stride()) == (other.shape, other.dtype, other.stride())


def test_every_custom_op_has_an_example() -> None:
    registered = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("qeff_zoo::")
    }
    assert registered == set(EXAMPLES)


def test_translations_cover_every_op_and_register_once() -> None:
    first, second = translations.table(), translations.table()
    assert set(first) == set(second)
    assert {op.default for op, _ in EXAMPLES.values()} <= set(first)
    for op in semantic.ALL:
        assert onnx.defs.has(op.name, SEMANTIC)
