# SPDX-License-Identifier: Apache-2.0
"""The data file: layout, exact conversions, quantization as ONNX Runtime sees it, and failure."""

import errno
import hashlib
import os
import resource
import tempfile
import threading
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from fixtures_weights import _NUMPY, Source
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_ir.passes import common as onnx_passes
from safetensors import safe_open
from safetensors.numpy import save_file

from qeff_zoo.checkpoint import expressions as ex
from qeff_zoo.errors import CheckpointError, StoreError, UnsupportedModelError
from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import FLOAT16, FLOAT32, WEIGHTS, Format, format_of
from qeff_zoo.targets.ort.unrounded import unround
from qeff_zoo.validation.reference.weight_file import WeightFile, distance
from qeff_zoo.weights import placement
from qeff_zoo.weights import writing as weights
from qeff_zoo.weights.matrices import Matrices
from qeff_zoo.weights.quantization import Stored, dequantize, quantize, round_trip
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import FileLayout, Slot, Written, plan_file, write


def _normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _written(
    slots: list[Slot], source: Source, path: Path
) -> tuple[FileLayout, Written, Mapping[str, Any]]:
    path.unlink(missing_ok=True)
    layout = plan_file(slots, source.tensors)
    written = write(layout, source, path)
    assert written.nbytes == layout.nbytes == path.stat().st_size
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found: dict[str, Any] = {}
    for name, entry in layout.entries.items():
        dtype = {"U8": np.uint8, "I8": np.int8, "BOOL": np.bool_, **_NUMPY}[entry.dtype]
        found[name] = np.fromfile(path, dtype, int(np.prod(entry.shape)), offset=entry.offset)
        found[name] = found[name].reshape(entry.shape)
        assert found[name].nbytes == entry.nbytes
    return layout, written, found


INT8, INT4, W8A8 = (format_of(weights, 32) for weights in ("int8", "int4", "w8a8"))
FORMATS = st.sampled_from([format_of(weights, 32) for weights in WEIGHTS])


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=0, max_size=3),
            st.sampled_from(["F32", "F16", "BF16"]),
            FORMATS,
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_any_file_is_a_safetensors_file(tmp_path_factory: Any, tensors: list[Any]) -> None:
    arrays, slots = {}, []
    for i, (shape, dtype, format, large) in enumerate(tensors):
        full = [600, 450] if large else shape
        quantizable = len(full) > 1 and 0 not in full
        arrays[f"t{i}"] = (dtype, np.zeros(full, _NUMPY[dtype]))
        slots.append(Slot(f"t{i}", f"t{i}", format if quantizable else FLOAT32))
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    layout, _, _ = _written(slots, Source(**arrays), path)
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(layout.entries)
        for name, entry in layout.entries.items():
            assert tuple(file.get_slice(name).get_shape()) == entry.shape
            assert entry.offset % (64 if not name.startswith("__pad") else 1) == 0
            if entry.nbytes >= 1 << 20:
                assert entry.offset % 4096 == 0
    assert len(layout.header) % 4096 == 0


def test_a_layout_without_odd_sizes_has_no_fillers() -> None:
    source = Source(a=_normal(512, 512), b=_normal(1024, 512), c=_normal(512))
    slots = [Slot("c", "c"), Slot("a", "a", INT4), Slot("b", "b"), Slot("d", "a")]
    layout = plan_file(slots, source.tensors)
    assert list(layout.entries) == ["b", "d", "c", "a", "a.scales", "a.zero_points"]


def test_two_tensors_of_one_name_are_refused() -> None:
    source = Source(a=_normal(2, 32))
    with pytest.raises(ValueError, match=r"'a\.scales'"):
        plan_file([Slot("a", "a", INT4), Slot("a.scales", "a")], source.tensors)


def test_every_bfloat16_and_float16_is_converted_exactly(tmp_path: Path) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    source = Source(b=("BF16", patterns), h=("F16", patterns.view(np.float16)))
    slots = [Slot(name, name) for name in "bh"]
    _, _, found = _written(slots, source, tmp_path / "w")
    assert np.array_equal(found["b"].view(np.uint32), patterns.astype(np.uint32) << 16)
    halves = patterns.view(np.float16)
    numbers = ~np.isnan(halves)
    assert np.array_equal(found["h"][numbers], halves[numbers].astype(np.float32))
    assert np.isnan(found["h"][~numbers]).all()


def test_float64_and_an_offset(tmp_path: Path) -> None:
    source = Source(a=np.array([1 / 3, -2.5]), b=("BF16", np.array([0x3F80, 0xBF80], np.uint16)))
    slots = [Slot("a", "a"), Slot("b", "b", add=1.0)]
    _, _, found = _written(slots, source, tmp_path / "w")
    assert np.array_equal(found["a"], np.array([1 / 3, -2.5]).astype(np.float32))
    assert np.array_equal(found["b"], [2, 0])


def test_float16_is_clipped_and_keeps_infinities(tmp_path: Path) -> None:
    matrix = np.array([[1e6, -7e4, 65504.0, 1e-3], [np.inf, -np.inf, np.nan, 0.1]], np.float32)
    _, _, found = _written([Slot("w", "w", FLOAT16)], Source(w=matrix), tmp_path / "w")
    expected = [[65504.0, -65504.0, 65504.0, 1e-3], [np.inf, -np.inf, np.nan, 0.1]]
    assert found["w"].dtype == np.float16
    np.testing.assert_array_equal(found["w"], np.float16(expected))


def test_tensors_of_several_dtypes(tmp_path: Path) -> None:
    source = Source(a=_normal(2, 3), b=_normal(2, 3).astype(np.float16))
    slots = [Slot("ab", ex.concat(1, "a", "b"))]
    _, _, found = _written(slots, source, tmp_path / "w")
    a, b = (source.arrays[name][1].astype(np.float32) for name in "ab")
    assert np.array_equal(found["ab"], np.concatenate([a, b], 1))


@pytest.mark.parametrize(("format", "add"), [(FLOAT32, 0.0), (INT4, 1.0)])
def test_integer_weights_are_refused(format: Format, add: float) -> None:
    source = Source(q=("F8_E4M3", np.zeros((2, 32), np.uint8)))
    with pytest.raises(UnsupportedModelError, match="'q' has dtype 'F8_E4M3'"):
        plan_file([Slot("x", "q", format, add)], source.tensors)


def _expressions() -> dict[str, ex.Expression]:
    return {
        "whole": "a",
        "transposed": ex.transpose(0, 1, "a"),
        "rows": ex.concat(0, "a", "b"),
        "columns": ex.concat(1, "a", "b"),
        "experts": ex.concat(1, ex.stack(0, "a", "b"), ex.stack(0, "b", "a")),
        "part": ex.cut(0, 3, 90, "a"),
    }


@pytest.mark.parametrize("format", [FLOAT32, FLOAT16, INT8, INT4, W8A8])
@pytest.mark.parametrize("block", [1 << 18, 1000])
def test_streaming_gives_what_converting_at_once_gives(
    format: Format, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_BLOCK", block)
    source = Source(a=_normal(96, 70), b=_normal(96, 70, seed=1))
    slots = [Slot(name, e, format) for name, e in _expressions().items()]
    _, _, found = _written(slots, source, tmp_path / "w")
    for name, e in _expressions().items():
        value = weights.evaluate(e, source)
        expected = round_trip(value, format)
        actual = found[name]
        if not format.is_float:
            others = (found.get(f"{name}.{kind}") for kind in ("scales", "zero_points"))
            actual = dequantize(Stored(actual, *others), value.shape)
        assert np.array_equal(actual, expected), name


def test_every_tensor_is_read_once_in_pieces_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_BLOCK", 1000)
    names = [f"e{i}.{w}" for w in ("w1", "w3") for i in range(4)]
    source = Source(**{name: _normal(96, 70, seed=i) for i, name in enumerate(names)})
    fused = ex.concat(1, ex.stack(0, *names[:4]), ex.stack(0, *names[4:]))
    slots = [Slot(f"q{i}", ex.index(i, fused), INT4) for i in range(2)]
    layout = plan_file([Slot("f", fused)], source.tensors)
    write(layout, source, tmp_path / "w")
    assert source.elements_read == dict.fromkeys(names, 96 * 70)
    assert sorted(source.released) == sorted(names)
    source.elements_read.clear()
    write(plan_file(slots, source.tensors), source, tmp_path / "q")
    assert source.elements_read == dict.fromkeys(("e0.w1", "e0.w3", "e1.w1", "e1.w3"), 96 * 70)


@settings(max_examples=40)
@given(
    st.sampled_from([4, 8]),
    st.sampled_from([16, 32, 128]),
    st.integers(1, 5),
    st.integers(1, 150),
    st.sampled_from([1e-44, 1e-38, 1e-6, 1.0, 1e30]),
    st.integers(0, 99),
)
def test_quantization_is_within_half_a_step(
    bits: int, block: int, rows: int, columns: int, magnitude: float, seed: int
) -> None:
    matrix = _normal(rows, columns, seed=seed) * np.float32(magnitude)
    matrix[0, 0] = 0
    stored = quantize(matrix, format_of(f"int{bits}", block))
    assert stored.scales is not None
    blocks = -(-columns // block)
    assert stored.data.shape == (rows, blocks, block * bits // 8)
    assert stored.scales.shape == (rows, blocks)
    error = np.abs(dequantize(stored, matrix.shape) - matrix)
    step = np.repeat(stored.scales, block, 1)[:, :columns]
    # int4 clips what lies beyond the ends of its grid.
    restored = dequantize(stored, matrix.shape)
    beyond = np.abs(matrix) > np.abs(restored)
    beyond &= (restored == 0) | (np.sign(restored) == np.sign(matrix))
    ends = [_over_blocks(restored, block, find) for find in (np.maximum, np.minimum)]
    at_end = (restored == ends[0]) | (restored == ends[1])
    clips = beyond & at_end if bits == 4 else False
    bound = np.where(clips, 16 * step, step / 2) * (1 + 1e-5)
    largest = np.abs(matrix).max()
    assert (error <= np.maximum(bound, 1e-36 if largest < 1e-36 else 0)).all()


def _over_blocks(matrix: Any, block: int, find: Any) -> Any:
    """The highest or lowest of every value's block, 0 among them."""
    columns = matrix.shape[1]
    padded = np.pad(matrix, ((0, 0), (0, -columns % block)))
    found = find.reduce(padded.reshape(len(matrix), -1, block), -1)
    return np.repeat(found, block, 1)[:, :columns]


@settings(max_examples=25)
@given(
    st.sampled_from([32, 64, 128]),
    st.integers(1, 300),
    st.sampled_from([1e-30, 1.0, 1e30]),
    st.sampled_from([0.0, 1.5, 6.0]),
    st.integers(0, 99),
)
@example(32, 34, 1e-30, 1.5, 18)  # a block whose values are nearly all negative
def test_fitted_int4_has_no_more_weighted_error_than_nearest(
    block: int, columns: int, magnitude: float, spread: float, seed: int
) -> None:
    format, chance = format_of("int4", block), np.random.default_rng(seed)
    matrix = chance.standard_t(3, (7, columns)).astype(np.float32) * np.float32(magnitude)
    importance = np.exp(chance.normal(0, spread, columns)).astype(np.float32)
    nearest = round_trip(matrix, replace(format, fitted=False))
    for by in (None, importance):
        fitted = round_trip(matrix, format, by)
        errors = [
            np.square((one - matrix).astype(np.float64)) * (1 if by is None else by)
            for one in (fitted, nearest)
        ]
        own_error, other_error = (_by_block(one, block).sum(-1) for one in errors)
        assert (own_error <= other_error * (1 + 1e-4)).all()
        assert np.array_equal(fitted[2:3], round_trip(matrix[2:3], format, by))  # as in a piece
        expected = torch.from_numpy(matrix)
        assert _weight_file_distance(quantize(matrix, format, by), expected, format) <= 1
        other = torch.from_numpy(np.roll(matrix, 1, 0))
        if columns >= 64:
            assert _weight_file_distance(quantize(matrix, format, by), other, format) > 1


def _by_block(values: Any, block: int) -> Any:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % block))).reshape(len(values), -1, block)


def _weight_file_distance(stored: Stored, expected: torch.Tensor, format: Format) -> float:
    """How far validation finds stored integers from a matrix."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.safetensors")
        named = {"w": stored.data, "w.scales": stored.scales, "w.zero_points": stored.zero_points}
        save_file({name: one for name, one in named.items() if one is not None}, path)
        piece = WeightFile(path).read("w", format, (), expected.shape[1], rounded=True)
    return distance(expected, piece, format, rounded=True, slack=0).error


def test_each_expert_of_a_stack_has_its_own_importance(tmp_path: Path) -> None:
    stack = _normal(5, 40, 64)
    importance = np.exp(_normal(5, 64, seed=1) * 2)
    source, path = Source(w=stack), tmp_path / "w"
    layout = plan_file([Slot("slot", "w", INT4)], source.tensors)
    write(layout, source, path, importance={"slot": importance})
    with safe_open(path, "np") as file:
        data = file.get_tensor("slot")
    for number, matrix in enumerate(stack):
        assert np.array_equal(data[number], quantize(matrix, INT4, importance[number]).data)
        assert not np.array_equal(data[number], quantize(matrix, INT4).data)


def test_zero_stays_zero_at_int4() -> None:
    matrix = _normal(3, 200)
    matrix[:, ::3] = 0
    matrix[1] = np.abs(matrix[1])  # blocks that have one sign
    matrix[2] = -np.abs(matrix[2])
    assert not round_trip(matrix, format_of("int4", 64))[:, ::3].any()
    assert not round_trip(np.zeros((2, 64), np.float32), format_of("int4", 64)).any()


@pytest.mark.parametrize("seed", range(3))
def test_int4_in_blocks_of_64_is_as_near_as_symmetric_int4_in_blocks_of_32(seed: int) -> None:
    """The format of q4_0 and of other builders, whose largest value is 8 steps from zero."""
    matrix = _normal(512, 512, seed=seed)
    blocks = matrix.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    other = np.clip(np.rint(blocks / (largest / -8)), -8, 7) * (largest / -8)
    ours = round_trip(matrix, format_of("int4", 64))
    assert np.square(ours - matrix).mean() < 1.09 * np.square(other - blocks).mean()
    better = round_trip(matrix, INT4)
    assert np.square(better - matrix).mean() < 0.9 * np.square(other - blocks).mean()


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("format", [INT4, INT8, W8A8])
def test_infinite_weights_are_not_quantized(format: Format, wrong: float, tmp_path: Path) -> None:
    matrix = _normal(4, 64)
    matrix[2, 3] = wrong
    source = Source(w=matrix)
    with pytest.raises(CheckpointError, match=r"Cannot store 'slot' in \d bits"):
        write(
            plan_file([Slot("slot", "w", format)], source.tensors),
            source,
            tmp_path / "w",
        )
    assert not list(tmp_path.iterdir())


def _matmul_nbits(
    matrix: Any,
    bits: int,
    block: int,
    level: int,
    inputs: Any,
    *,
    rounds: bool = True,
    memory: int | None = None,
) -> Any:
    stored = quantize(matrix, format_of(f"int{bits}", block))
    given = {"b": stored.data, "s": stored.scales, "z": stored.zero_points}
    given = {name: array for name, array in given.items() if array is not None}
    rows, columns = matrix.shape
    node = helper.make_node(
        "MatMulNBits", ["x", *given], ["y"], domain="com.microsoft",
        K=columns, N=rows, bits=bits, block_size=block, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", rows])],
        [onnx.numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    if not rounds:
        assert unround(model.graph, memory) == 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": inputs})[0]


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("columns", [128, 200, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_computes_with_the_same_values(
    bits: int, columns: int, block: int, level: int
) -> None:
    matrix, inputs = _normal(48, columns), _normal(5, columns, seed=1)
    restored = round_trip(matrix, format_of(f"int{bits}", block))
    expected = inputs @ restored.T
    actual = _matmul_nbits(matrix, bits, block, level, inputs)
    # Level 4 rounds the inputs to int8 as well.
    tolerance = 2e-5 if level == 0 else 0.03
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
    if level:
        for memory in (None, 0):  # in floats, and in parts where these have no room
            exact = _matmul_nbits(matrix, bits, block, level, inputs, rounds=False, memory=memory)
            np.testing.assert_allclose(exact, expected, atol=2e-5)
            assert np.abs(actual - expected).max() > 10 * np.abs(exact - expected).max()


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
def test_a_full_disk_is_reported_and_leaves_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = Source(a=_normal(64, 64))
    monkeypatch.setattr(os, call, full)
    with pytest.raises(StoreError, match="No space left on device"):
        write(plan_file([Slot("a", "a")], source.tensors), source, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_a_limit_of_the_file_size_is_met_before_anything_is_read(tmp_path: Path) -> None:
    source = Source(a=_normal(64, 64))
    layout = plan_file([Slot("a", "a")], source.tensors)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            write(layout, source, tmp_path / "w")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not source.elements_read
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    source = Source(a=_normal(2))
    (tmp_path / "w").write_text("mine")
    with pytest.raises(StoreError, match="File exists"):
        write(plan_file([Slot("a", "a")], source.tensors), source, tmp_path / "w")
    assert (tmp_path / "w").read_text() == "mine"


def test_an_interruption_leaves_nothing_and_ends_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_BLOCK", 100)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    source, threads = Source(a=_normal(64, 64)), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        write(plan_file([Slot("a", "a")], source.tensors), source, tmp_path / "w", interrupt)
    assert not list(tmp_path.iterdir())
    assert threading.active_count() == threads


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    source = Source(a=_normal(600, 640), b=_normal(3, 5))
    steps: list[int] = []
    layout = plan_file([Slot("a", "a", INT4), Slot("b", "b"), Slot("c", "a")], source.tensors)
    write(layout, source, tmp_path / "w", steps.append)
    assert sum(steps) == layout.nbytes
    assert len(steps) > 5


@pytest.mark.parametrize("format", [FLOAT32, INT4, W8A8])
def test_memory_does_not_grow_with_the_tensor(format: Format, tmp_path: Path) -> None:
    source = Source(a=_normal(2048, 4096))  # 32 MiB
    slots = [Slot("a", ex.stack(0, "a", "a", "a"), format)]
    layout = plan_file(slots, source.tensors)
    tracemalloc.start()
    try:
        write(layout, source, tmp_path / "w")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = Source(a=_normal(600, 640))
    slots = [Slot("a", "a", INT8), Slot("b", "a")]
    digests = {_written(slots, source, tmp_path / str(i))[1].sha256 for i in range(3)}
    assert len(digests) == 1


# --- weights that a graph moves ------------------------------------------------------------------

_MOVES = """
<ir_version: 10, opset_import: ["": 18]>
main (float[2, 4] x, float[6, 4] matrix, float[3, 6, 4] stack)
    => (float[2, 6] a, float[2, 2] b, float[2, 3] c, float[2, 1] d, float[3, 2, 6] e, float[2, 4] f, float[2, 8] g)
<int64 second = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4},
 int64[2] halves = {3, 3}, int64[2] wide = {-1, 8}>
{
    a_turned = Transpose <perm = [1, 0]> (matrix)
    a = MatMul (x, a_turned)
    b_rows = Slice (matrix, two, four, zero)
    b_turned = Transpose (b_rows)
    b = MatMul (x, b_turned)
    c_one = Gather (stack, second)
    c_first, c_rest = Split <axis = 0> (c_one, halves)
    c_turned = Transpose <perm = [1, 0]> (c_rest)
    c = MatMul (x, c_turned)
    d_row = Gather (matrix, second)
    d_number = Gather (d_row, second)
    d_sum = ReduceSum <keepdims = 1> (x, one)
    d = Mul (d_sum, d_number)
    e_turned = Transpose <perm = [0, 2, 1]> (stack)
    e = MatMul (x, e_turned)
    f_both = Concat <axis = 0> (matrix, matrix)
    f_shape = Shape <start = 0, end = 1> (f_both)
    f_float = Cast <to = 1> (f_shape)
    f = Mul (x, f_float)
    g_rows = Reshape (matrix, wide)
    g_row = Slice (g_rows, one, two, zero)
    g_flat = Squeeze (g_row, zero)
    g_wide = Unsqueeze (g_flat, zero)
    g_both = Concat <axis = 0> (g_wide, g_wide)
    g_two = Constant <value_float = 2.0> ()
    g = Mul (g_both, g_two)
}"""


@pytest.mark.parametrize("format", [FLOAT32, FLOAT16])
def test_weights_are_stored_as_a_graph_moves_them(format: Format, tmp_path: Path) -> None:
    source = Source(matrix=_normal(6, 4), stack=_normal(3, 6, 4, seed=1))
    stored = {name: array for name, (_, array) in source.arrays.items()}
    for array in stored.values():
        array[:] = array.astype(np.float16)
    model, feeds = ir.from_onnx_text(_MOVES), {"x": _normal(2, 4, seed=2)}
    whole = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    expected = whole.run(None, {**feeds, **stored})
    graph = model.graph
    for value in list(graph.inputs)[1:]:
        graph.inputs.remove(value)
        value.const_value = external_data.placeholder(value.name, value.dtype, value.shape)
        graph.initializers[value.name] = value
    matrices = Matrices(graph, {name: name for name in stored}, Storage(format))
    matrices.settle()
    matrices.rest()
    onnx_passes.RemoveUnusedNodesPass()(model)
    moving = {"Transpose", "Slice", "Gather", "Split", "Reshape", "Squeeze", "Shape", "Concat"}
    assert not moving & {node.op_type for node in graph}
    layout = plan_file(matrices.used_slots(), source.tensors)
    write(layout, source, tmp_path / external_data.WEIGHTS)
    placement.place(model, layout)
    ir.save(model, tmp_path / "graph.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "graph.onnx").run(None, feeds)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
