# SPDX-License-Identifier: Apache-2.0
"""Weights w8a8 in ONNX Runtime: products of integers alone, one scale a row, against the same in float64."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import parity
import pytest
from fixtures_weights import Source
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir.tape import Tape

from qeff_zoo.errors import CompileError
from qeff_zoo.graph import external_data
from qeff_zoo.graph.external_data import placeholder
from qeff_zoo.graph.numerics import Format, format_of
from qeff_zoo.graph.semantic import domains
from qeff_zoo.targets.ort import lowering, processor, unrounded
from qeff_zoo.targets.ort.session import open_graph
from qeff_zoo.weights import placement
from qeff_zoo.weights.quantization import dequantize, quantize, round_trip
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import plan_file, write

pytestmark = pytest.mark.turns(2)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
W8A8 = format_of("w8a8")
BY_ROWS = Storage(W8A8)


def weight(name: str, matrix: Array) -> ir.Value:
    value = ir.val(name, ir.DataType.FLOAT, matrix.shape)
    value.const_value = placeholder(name, ir.DataType.FLOAT, matrix.shape)
    return value


def lowered(
    tape: Tape, x: ir.Value, made: list[ir.Value], matrices: dict[str, Array], folder: Path
) -> Path:
    """Lower a graph of one input and write it with its weights."""
    for number, value in enumerate(made):
        value.name, value.type = f"made.{number}", ir.TensorType(ir.DataType.FLOAT)
    imports = {"": domains.OPSET, domains.SEMANTIC: 1}
    weights = [
        value for node in tape.nodes for value in node.inputs if value and value.name in matrices
    ]
    graph = ir.Graph(
        [x], made, nodes=tape.nodes, initializers=weights, opset_imports=imports, name="one"
    )
    model = ir.Model(graph, ir_version=10)
    found = lowering.lower(model, {name: name for name in matrices}, BY_ROWS)
    source = Source(**matrices)
    layout = plan_file(found.slots, source.tensors)
    write(layout, source, folder / external_data.WEIGHTS)
    placement.place(model, layout)
    ir.save(model, folder / "graph.onnx")
    return folder / "graph.onnx"


def product(matrix: Array, shape: tuple[Any, ...], folder: Path) -> Path:
    """Write a product of a left side of some shape by a matrix."""
    x, tape = ir.val("x", ir.DataType.FLOAT, shape), Tape()
    made = tape.op("Linear", [x, weight("w", matrix)], domain=domains.SEMANTIC)
    return lowered(tape, x, [made], {"w": matrix}, folder)


def expected(x: Array, matrix: Array) -> Array:
    """Compute with both sides rounded by rows, in float64."""
    left, right = (round_trip(one, W8A8).astype(np.float64) for one in (x, matrix))
    return left @ right.T


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- what is stored ------------------------------------------------------------------------------


@settings(max_examples=example_count(60))
@given(
    st.integers(1, 5),
    st.integers(1, 150),
    st.sampled_from([1e-44, 1e-38, 1e-6, 1.0, 1e30]),
    st.integers(0, 99),
)
def test_values_are_within_half_a_step(
    rows: int, columns: int, magnitude: float, seed: int
) -> None:
    matrix = normal(rows, columns, seed=seed) * np.float32(magnitude)
    matrix[0] = 0
    stored = quantize(matrix, W8A8)

    assert stored.scales is not None
    assert stored.zero_points is not None
    assert (stored.data.dtype, stored.data.shape) == (np.int8, matrix.shape)
    assert stored.scales.shape == stored.zero_points.shape == (rows,)
    assert not stored.zero_points.any()
    assert np.abs(stored.data.astype(int)).max() <= 127
    error = np.abs(dequantize(stored, matrix.shape) - matrix)
    largest = np.abs(matrix).max(1, keepdims=True)
    step = np.where(largest < 1e-36, 1e-36, largest / 127)  # rows of subnormal numbers become 0
    assert (error <= step / 2 * (1 + 1e-5)).all()


def test_its_format_is_recorded() -> None:
    assert W8A8.per_channel
    assert W8A8.in_words == "int8, per-channel"
    assert not any(one.per_channel for one in (Format(), Format(bits=16), format_of("int8")))


# --- products ------------------------------------------------------------------------------------


@settings(max_examples=example_count(40))
@given(
    lead=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    rows=st.integers(1, 70),
    columns=st.integers(1, 300),
    magnitude=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_rows_rounded_to_int8(
    lead: list[int], rows: int, columns: int, magnitude: float, seed: int
) -> None:
    matrix, x = normal(rows, columns, seed=seed), normal(*lead, columns, seed=seed + 1)
    x *= np.float32(magnitude)
    x[0] = 0  # a row of padding
    with tempfile.TemporaryDirectory() as name:
        path = product(matrix, (*"abcd"[: len(lead)], columns), Path(name))
        (made,) = open_graph(path, prepack=True).run(None, {"x": x})
    right = expected(x, matrix)

    assert made.shape == right.shape
    assert not made[0].any()
    # A number in the middle between two roundings may fall to either side, in float32 or in float64.
    slack = np.abs(x).max(-1, keepdims=True) / 127 * np.abs(matrix).max() * 1.001
    assert (np.abs(made - right) <= slack + 1e-5 * np.abs(right).max()).all()
    assert np.median(np.abs(made - right)) <= 1e-5 * np.abs(right).max() + 1e-30


def test_what_is_computed_of_a_row_is_the_same_beside_any_other(tmp_path: Path) -> None:
    """To the last bit: one scale for all rows of a call would not be so."""
    path = product(normal(40, 96), ("batch", "seq", 96), tmp_path)
    session, x = open_graph(path, prepack=True), normal(2, 37, 96)
    (whole,) = session.run(None, {"x": x})
    x[:, 1:] *= 1000
    (beside,) = session.run(None, {"x": x})
    (alone,) = session.run(None, {"x": x[:, :1]})

    assert np.array_equal(whole[:, 0], beside[:, 0])
    assert np.array_equal(whole[:, :1], alone)


def test_extremes_do_not_saturate_whatever_the_processor(tmp_path: Path) -> None:
    """Pairs of 255 * 127 are beyond 16 bits: a processor that sums so needs the other products."""
    x, matrix = np.ones((1, 3, 256), np.float32), np.ones((8, 256), np.float32)
    path = product(matrix, ("a", "b", 256), tmp_path)
    for exact in (False, True):
        options = onnxruntime.SessionOptions()
        for name, value in processor.EXACT.items() if exact else ():
            options.add_session_config_entry(name, value)
        if exact or processor.sums_in_32_bits():
            session = onnxruntime.InferenceSession(path, options)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], 256, rtol=1e-6)
    (made,) = open_graph(path, prepack=True).run(None, {"x": x})
    np.testing.assert_allclose(made, 256, rtol=1e-6)


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a processor describes itself, which is a machine without a description at first."""
    description = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_DESCRIPTION", description)
    processor.sums_in_32_bits.cache_clear()
    yield description
    processor.sums_in_32_bits.cache_clear()


@pytest.mark.parametrize(
    ("flags", "sums"),
    [
        ("flags : fpu avx2 avx512f", False),
        ("flags : fpu avx2 avx_vnni", True),
        ("flags : avx512f avx512_vnni", True),
        ("flags : amx_tile amx_int8", True),
        (None, False),
    ],
)
def test_a_processor_without_vnni_is_asked_for_exact_products(
    flags: str | None, sums: bool, described: Path
) -> None:
    if flags is not None:
        described.write_text(f"model name\t: one\n{flags}\n")
    assert (processor.EXACT.items() <= processor.options().items()) is not sums


@pytest.mark.parametrize("described_as", ["it is", "avx2"])
def test_products_by_one_matrix_in_several_places(
    described_as: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As layers share one (ALBERT): ONNX Runtime rewrites it for processors without VNNI, for each place alone."""
    if described_as == "avx2":
        request.getfixturevalue("described").write_text("flags : avx2\n")
    matrix, x, tape = normal(64, 64), ir.val("x", ir.DataType.FLOAT, ("tokens", 64)), Tape()
    shared = weight("w", matrix)
    made = x
    for _ in range(3):
        made = tape.op("Linear", [made, shared], domain=domains.SEMANTIC)
    path = lowered(tape, x, [made], {"w": matrix}, tmp_path)
    assert path.parent.joinpath("weights.safetensors").stat().st_size < 3 * matrix.size  # once
    right = values = normal(3, 64)
    for _ in range(3):
        right = expected(right, matrix).astype(np.float32)
    (found,) = open_graph(path, prepack=True).run(None, {"x": values})
    assert np.median(np.abs(found - right)) <= 1e-4 * np.abs(right).max()

    model = ir.load(path)
    assert unrounded.unround(model.graph) == 3
    graph = ir.to_proto(model).SerializeToString()
    (exact,) = open_graph(path, prepack=True, graph=graph).run(None, {"x": values})
    whole = values.astype(np.float64)
    for _ in range(3):
        whole = whole @ round_trip(matrix, W8A8).astype(np.float64).T
    np.testing.assert_allclose(exact, whole, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize("lead", [(0,), (0, 5), (3, 0)])
def test_of_no_rows_there_is_an_empty_product(lead: tuple[int, ...], tmp_path: Path) -> None:
    """As an expert has them that nobody chose."""
    path = product(normal(24, 64), (*"ab"[: len(lead)], 64), tmp_path)
    (made,) = open_graph(path, prepack=True).run(None, {"x": normal(*lead, 64)})
    assert made.shape == (*lead, 24)


def test_products_of_one_value_round_it_once(tmp_path: Path) -> None:
    matrices = {"a": normal(24, 64), "b": normal(24, 64, seed=1), "c": normal(40, 64, seed=2)}
    x, tape = ir.val("x", ir.DataType.FLOAT, ("batch", "seq", 64)), Tape()
    made = [
        tape.op("Linear", [x, weight(*one)], domain=domains.SEMANTIC) for one in matrices.items()
    ]
    path = lowered(tape, x, made, matrices, tmp_path)
    ops = Counter(node.op_type for node in ir.load(path).graph)
    assert ops["QGemm"] == 3
    assert ops["QuantizeLinear"] == ops["ReduceMax"] == 1
    values = normal(2, 5, 64)
    for found, matrix in zip(
        open_graph(path, prepack=True).run(None, {"x": values}), matrices.values(), strict=True
    ):
        np.testing.assert_allclose(found, expected(values, matrix), atol=1e-4)


@pytest.mark.parametrize("counts", [[3, 0, 2], [0, 5, 0], [0, 0, 5]])
def test_parts_of_tokens_are_rounded_together(counts: list[int], tmp_path: Path) -> None:
    """As experts are given them."""
    matrices = {name: normal(16, 64, seed=seed) for seed, name in enumerate("abc")}
    x, tape = ir.val("x", ir.DataType.FLOAT, ("tokens", 64)), Tape()
    sizes = tape.op("Constant", [], {"value_ints": counts})
    parts = tape.op_multi_out("Split", [x, sizes], {"axis": 0}, num_outputs=3)
    made = [
        tape.op("Linear", [part, weight(*one)], domain=domains.SEMANTIC)
        for part, one in zip(parts, matrices.items(), strict=True)
    ]
    path = lowered(tape, x, made, matrices, tmp_path)
    ops = Counter(node.op_type for node in ir.load(path).graph)
    assert ops["QuantizeLinear"] == 1
    values = normal(5, 64, seed=9)
    found = open_graph(path, prepack=True).run(None, {"x": values})
    stops = np.cumsum(counts)
    for one, matrix, stop, count in zip(found, matrices.values(), stops, counts, strict=True):
        right = expected(values[stop - count : stop], matrix)
        assert one.shape == right.shape
        np.testing.assert_allclose(one, right, atol=1e-4)


def test_rows_are_looked_up_in_the_table_that_is_multiplied_by(tmp_path: Path) -> None:
    matrix = normal(50, 40)
    x, tape = ir.val("x", ir.DataType.INT64, ("batch", "seq")), Tape()
    table = weight("w", matrix)
    rows = tape.op("Gather", [table, x])
    made = [rows, tape.op("Linear", [rows, table], domain=domains.SEMANTIC)]
    path = lowered(tape, x, made, {"w": matrix}, tmp_path)
    ids = np.array([[3, 49, 0], [7, 7, 1]])
    found, multiplied = open_graph(path, prepack=True).run(None, {"x": ids})
    assert np.array_equal(found, round_trip(matrix, W8A8)[ids])
    np.testing.assert_allclose(multiplied, expected(found, matrix), atol=1e-4)


def test_a_table_whose_rows_are_looked_up_and_summed_stays_in_floats(tmp_path: Path) -> None:
    """Its columns, which a product rounds, and its rows would be two models."""
    matrix = normal(50, 64)
    x, tape = ir.val("x", ir.DataType.FLOAT, ("tokens", 50)), Tape()
    table, ids = weight("w", matrix), tape.op("Constant", [], {"value_ints": [48, 49]})
    made = [tape.op("MatMul", [x, table]), tape.op("Gather", [table, ids])]
    path = lowered(tape, x, made, {"w": matrix}, tmp_path)
    values = normal(3, 50)
    product_, found = open_graph(path).run(None, {"x": values})
    np.testing.assert_allclose(product_, values @ matrix, rtol=1e-4, atol=1e-4)
    assert np.array_equal(found, matrix[48:])


def test_sums_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    matrix = np.zeros((1, 66_312), np.float32)
    with pytest.raises(CompileError, match=r"'w' has 66,312 columns.*at most 66,311.*'w=int8'"):
        product(matrix, ("a", 66_312), tmp_path)


# --- whole models --------------------------------------------------------------------------------


@pytest.mark.together("llama-base")
@pytest.mark.parametrize("name", ["llama-base", "gpt2-base", "qwen2-base"])
@pytest.mark.sampled(2)
def test_attention_is_the_kernel_that_it_is_with_int8(name: str) -> None:
    """Whatever a product is made of, its heads are found."""
    subject = parity.subject(name)
    blocks, rows = subject.lower("int8"), subject.lower("w8a8")
    assert rows.ways == blocks.ways
    ops = [Counter(node.op_type for node in one.model.graph) for one in (blocks, rows)]
    for kernel in ("GroupQueryAttention", "MultiHeadAttention", "Transpose"):
        assert ops[0][kernel] == ops[1][kernel]
    joined = sum(  # of query, key and value
        node.op_type == "GroupQueryAttention" and node.inputs[1] is None
        for node in blocks.model.graph
    )
    assert ops[1]["QGemm"] == ops[0]["MatMulNBits"] + 2 * joined
    assert ops[1]["MatMulNBits"] == ops[1]["FusedMatMul"] == ops[1]["MatMul"] == 0
    assert {matrix.format for matrix in rows.numerics.matrices} == {W8A8}
    assert rows.numerics.int8_activations


@pytest.mark.together("mixtral-base")
def test_the_kernel_of_experts_has_its_matrices_in_blocks() -> None:
    numerics = parity.subject("mixtral-base").lower("w8a8").numerics
    formats = {matrix.format for matrix in numerics.matrices if ".experts." in matrix.name}
    assert formats == {format_of("int8")}
    assert {matrix.format for matrix in numerics.matrices} == {W8A8, format_of("int8")}
