# SPDX-License-Identifier: Apache-2.0
"""Recurrences and short convolutions for ONNX Runtime: the kernels answer as the portable bodies do.

That all of them answer as Hugging Face does is tested over every recipe in `test_recipes`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import parity
import pytest
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph import semantic
from qeff_zoo.targets.ort import convolution as convolution_pass
from qeff_zoo.targets.ort import recurrence as recurrence_pass

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
some = settings(max_examples=example_count(40))

RECURRENCE = """
    g (float[b, h, k, v] past, int64[b, s] position_ids, float[b, s, h, d] log_decay,
       float[b, s, g, k] key, float[b, s, h, v] value, float[b, s, g, k] query{beta})
      => (float[b, s, h, v] y, float[b, h, k, v] last) {{
        before = qeff_zoo.StateBefore (past, position_ids)
        y, last = qeff_zoo.{name} <heads = {heads}, groups = {groups}> (before, log_decay, key, value, query{rate})
    }}"""
CONVOLUTION = """
    g (float[b, 4, 3] past, int64[b, s] position_ids, float[b, 4, s] new, float[4, 1, {width}] weight, float[4] bias)
      => (float[b, 4, n] y, float[b, 4, 3] newest) {{
        first = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [9223372036854775807]> ()
        axis = Constant <value_ints = [2]> ()
        every = Constant <value_ints = [-1]> ()
        new_shape = Shape <start = 2, end = 3> (new)
        tokens = Squeeze (new_shape)
        negated = Neg (tokens)
        last = Reshape (negated, every)
        before = qeff_zoo.StateBefore (past, position_ids)
        seen, newest = qeff_zoo.ConvolutionWindow <channels = 4, kernel = 3> (before, position_ids, new)
        kernel = Constant <value_int = 3> ()
        total = Add (kernel, tokens)
        length = Reshape (total, every)
        {steps}
        y = Identity (read)
    }}"""
PADDED = """columns = Conv <group = 4, kernel_shape = [3], pads = [2, 2]> (seen, weight, bias)
        causal = Slice (columns, first, length, axis)"""
SILU = """gate = Sigmoid (causal)
        active = Mul (causal, gate)
        read = Slice (active, last, end, axis)"""


def parsed(text: str) -> ir.Model:
    header = '<ir_version: 10, opset_import: ["": 18, "qeff_zoo": 1, "com.microsoft": 1]>'
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    model.functions.update({function.identifier(): function for function in semantic.functions()})
    return model


def opened(model: ir.Model) -> onnxruntime.InferenceSession:
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@cache
def recurrence(
    name: str, heads: int, groups: int, lowered: bool
) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    """Open a graph of one recurrence, and count the kinds of its nodes."""
    beta, rate = (", float[b, s, h] beta", ", beta") if name == "DeltaRecurrence" else ("", "")
    model = parsed(RECURRENCE.format(name=name, heads=heads, groups=groups, beta=beta, rate=rate))
    if lowered:
        recurrence_pass.lower(model.graph)
    session = opened(model)
    return session, Counter(node.op_type for node in model.graph)


def in_place(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, Array], state: str
) -> tuple[Array, Array]:
    """Run a graph that writes its state where it reads it, as the runtime does."""
    binding, arrays = session.io_binding(), {**feeds, "past": feeds["past"].copy()}
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    binding.bind_ortvalue_output(state, values["past"])
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy(), arrays["past"]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positions_of(rows: list[tuple[int, int]], seq: int) -> Array:
    """Give rows of (first position, tokens), padding behind them."""
    found = np.full((len(rows), seq), -1)
    for row, (start, count) in zip(found, rows, strict=True):
        row[:count] = np.arange(start, start + count)
    return found


ROWS = st.lists(st.tuples(st.sampled_from([0, 9]), st.integers(0, 4)), min_size=1, max_size=3)


@some
@given(
    rows=ROWS,
    seq=st.sampled_from([4, 7]),
    groups=st.sampled_from([1, 2]),
    shared=st.sampled_from([1, 3]),
    sizes=st.sampled_from([(1, 1), (16, 1), (5, 3), (64, 64)]),
    by_column=st.booleans(),
    delta=st.booleans(),
)
def test_a_recurrence_equals_its_body(
    rows: list[tuple[int, int]],
    seq: int,
    groups: int,
    shared: int,
    sizes: tuple[int, int],
    by_column: bool,
    delta: bool,
) -> None:
    """With decays from all to nothing; rows that start, that go on, and that have padding alone."""
    seq = max(1, *(count for _, count in rows)) if seq == 4 else seq
    heads, (width, columns), batch = groups * shared, sizes, len(rows)
    positions = positions_of(rows, seq)
    valid = (positions >= 0)[..., None]
    log_decay = -np.exp(4 * normal(1, batch, seq, heads, width if by_column else 1))
    feeds = {
        "past": normal(0, batch, heads, width, columns),
        "position_ids": positions,
        "log_decay": log_decay * valid[..., None],
        "key": normal(2, batch, seq, groups, width) / width**0.5,
        "value": normal(3, batch, seq, heads, columns) * (1 if delta else valid[..., None]),
        "query": normal(4, batch, seq, groups, width),
        **({"beta": np.abs(normal(5, batch, seq, heads)) * valid} if delta else {}),
    }
    feeds = {
        name: value if name == "position_ids" else value.astype(np.float32)
        for name, value in feeds.items()
    }
    name = "DeltaRecurrence" if delta else "LinearRecurrence"
    expected = recurrence(name, heads, groups, False)[0].run(None, feeds)
    session, _ = recurrence(name, heads, groups, True)
    for found in (session.run(None, feeds), in_place(session, feeds, "last")):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    idle = [row for row, (_, count) in enumerate(rows) if not count]
    np.testing.assert_array_equal(found[1][idle], feeds["past"][idle])


def test_a_new_request_reads_no_state_of_an_earlier_one() -> None:
    """Not even of one that overflowed."""
    session, _ = recurrence("LinearRecurrence", 2, 1, True)
    feeds = {
        "past": np.full((2, 2, 3, 4), np.inf, np.float32),
        "position_ids": np.array([[0], [0]]),
        "log_decay": np.zeros((2, 1, 2, 1), np.float32),
        "key": normal(0, 2, 1, 1, 3),
        "value": normal(1, 2, 1, 2, 4),
        "query": normal(2, 2, 1, 1, 3),
    }
    _, last = session.run(None, feeds)
    update = feeds["key"][:, 0, :, :, None] * feeds["value"][:, 0, :, None]
    np.testing.assert_allclose(last, update, rtol=1e-6)


@cache
def convolution(
    width: int, steps: str, lowered: bool
) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    model = parsed(CONVOLUTION.format(width=width, steps=steps))
    if lowered:
        convolution_pass.lower(model.graph)
    session = opened(model)
    return session, Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize(
    ("width", "steps", "native"),
    [
        pytest.param(3, f"{PADDED}\n{SILU}", True, id="activated"),
        pytest.param(3, f"{PADDED}\nread = Slice (causal, last, end, axis)", True, id="plain"),
        pytest.param(
            2,
            """columns = Conv <group = 4, kernel_shape = [2]> (seen, weight, bias)
            read = Slice (columns, last, end, axis)""",
            True,
            id="narrow",
        ),
        pytest.param(
            3,
            f"{PADDED}\nread = Identity (causal)",
            False,
            id="all-columns-are-read",
        ),
        pytest.param(
            3,
            f"""{PADDED}
            gate = Sigmoid (causal)
            other = Mul (causal, causal)
            active = Mul (other, gate)
            read = Slice (active, last, end, axis)""",
            False,
            id="another-activation",
        ),
        pytest.param(
            3,
            """columns = Conv <group = 4, kernel_shape = [3], pads = [1, 1]> (seen, weight, bias)
            causal = Slice (columns, first, length, axis)
            read = Slice (causal, last, end, axis)""",
            False,
            id="not-causal",
        ),
        pytest.param(
            3,
            """columns = Conv <group = 4, kernel_shape = [3], pads = [2, 2]> (seen, weight, bias)
            new_length = Reshape (tokens, every)
            causal = Slice (columns, first, new_length, axis)
            read = Slice (causal, last, end, axis)""",
            False,
            id="not-the-newest",
        ),
        pytest.param(
            3,
            """columns = Conv <group = 4, kernel_shape = [3], dilations = [2], pads = [4, 4]> (seen, weight, bias)
            causal = Slice (columns, first, length, axis)
            read = Slice (causal, last, end, axis)""",
            False,
            id="dilated",
        ),
    ],
)
@some
@given(rows=ROWS)
def test_a_convolution_equals_its_body(
    width: int, steps: str, native: bool, rows: list[tuple[int, int]]
) -> None:
    seq = max(1, *(count for _, count in rows))
    feeds = {
        "past": normal(0, len(rows), 4, 3),
        "position_ids": positions_of(rows, seq),
        "new": normal(1, len(rows), 4, seq),
        "weight": normal(2, 4, 1, width),
        "bias": normal(3, 4),
    }
    expected = convolution(width, steps, False)[0].run(None, feeds)
    session, kinds = convolution(width, steps, True)
    assert (kinds["CausalConvWithState"], kinds["Conv"]) == ((1, 0) if native else (0, 1))
    for found in (session.run(None, feeds), in_place(session, feeds, "newest")):
        np.testing.assert_array_equal(found[1], expected[1])
        for (_, count), got, want in zip(rows, found[0], expected[0], strict=True):
            tokens = slice(got.shape[1] - seq + count if count else 0)
            np.testing.assert_allclose(got[:, tokens], want[:, tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.together(name))
        for name in ("mamba-base", "mamba2-base", "qwen3_5_text-base", "recurrent_gemma-base")
    ],
)
@pytest.mark.sampled(4)
def test_no_layer_keeps_its_body(name: str) -> None:
    graph = parity.subject(name).lower("fp32").model.graph
    kinds = Counter(node.op_type for node in graph)
    states = Counter(value.name.partition(".")[0] for value in graph.inputs)  # type: ignore[union-attr]
    assert kinds["If"] == states["recurrent_state"] > 0
    assert kinds["CausalConvWithState"] == states["conv_state"] > 0
    assert not kinds.keys() & {"Scan", "Conv", "LinearRecurrence", "DeltaRecurrence"}
    computed = {value.producer().op_type for value in graph.outputs if value.name != "logits"}  # type: ignore[union-attr]
    assert "CastLike" not in computed  # which would copy every state
    branches = [
        branch.as_graph()
        for node in graph
        if node.op_type == "If"
        for branch in node.attributes.values()
    ]
    assert all(
        Counter(node.op_type for node in branch)["LinearAttention"] == 1 for branch in branches
    )
