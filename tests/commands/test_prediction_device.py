# SPDX-License-Identifier: Apache-2.0
"""A graph in a device's numerics: what is rounded, what is not, and to what."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from qeff_zoo.errors import CompileError, StoreError
from qeff_zoo.graph import microscaling, semantic, states
from qeff_zoo.graph.numerics import MXFP6 as MX
from qeff_zoo.graph.numerics import DeviceNumerics
from qeff_zoo.targets.emulation import device
from qeff_zoo.targets.emulation.rounded_weights import RoundedWeights
from qeff_zoo.targets.qnn_htp import processes
from qeff_zoo.weights.quantization import round_trip

HEADER = '<ir_version: 10, opset_import: ["" : 18, "qeff_zoo" : 1]>'
FP16, MXFP6 = DeviceNumerics(), DeviceNumerics(weights="mxfp6")
MXINT8, HTP = DeviceNumerics(states="mxint8"), DeviceNumerics(functions="htp")
half = microscaling.to_float16_and_back
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def graph(text: str, **weights: Any) -> ir.Model:
    """Parse a graph, and give it weights."""
    header = "" if text.startswith("<ir_version") else HEADER
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    for name, array in weights.items():
        tensor = ir.tensor(array, name=name)
        kind = ir.TensorType(tensor.dtype)
        old = next(value for value in model.graph.inputs if value.name == name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
        ir.convenience.replace_all_uses_with(old, value)
        model.graph.inputs.remove(old)
        model.graph.initializers[name] = value
    return model


def run(model: ir.Model, *, optimized: bool = True, **inputs: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return session.run(None, inputs)  # type: ignore[no-any-return]


def rounded(text: str, numerics: DeviceNumerics = FP16, **given: Any) -> Any:
    """Run a graph in other numerics: arrays named w… are weights, the others inputs."""
    weights = {name: array for name, array in given.items() if name.startswith("w")}
    model = graph(text, **weights)
    device.apply(model, numerics)
    inputs = {name: array for name, array in given.items() if name not in weights}
    both = [run(model, optimized=optimized, **inputs)[0] for optimized in (True, False)]
    # Pairs of casts must not be taken for nothing.
    np.testing.assert_array_equal(*both)
    return both[0]


# --- results ----------------------------------------------------------------------------------------


def test_every_result_is_rounded() -> None:
    x = numbers(7, 5)

    got = rounded(
        "g (float[7, 5] x) => (float[7, 5] y) { a = Exp (x) \n b = Mul (a, a) \n y = Add (b, x) }",
        x=x,
    )

    a = half(np.exp(x))
    np.testing.assert_allclose(got, half(half(a * a) + x), rtol=2**-10)
    assert np.array_equal(got, half(got))


def test_results_saturate() -> None:
    x = np.array([300, -300, 200], np.float32)

    got = rounded(
        "g (float[3] x) => (float[3] y) { a = Mul (x, x) \n b = Mul (a, x) \n y = Identity (b) }",
        x=x,
    )

    assert got.tolist() == [65504, -65504, 65504]


def test_constants_saturate_too() -> None:
    text = """g (float[2] x) => (float[2] y) {
        far = Constant <value_float = -3.4028234663852886e38> ()
        zero = Constant <value_float = 0.0> ()
        seen = Greater (x, zero)
        y = Where (seen, zero, far)
    }"""

    assert rounded(text, x=np.array([1, -1], np.float32)).tolist() == [0, -65504]


def test_data_movement_ops_are_not_rounded() -> None:
    text = """g (float[4, 6] x) => (float[6, 4] y) {
        a = Transpose (x)
        b = Neg (a)
        y = Relu (b)
    }"""
    model = graph(text)
    device.apply(model, FP16)

    assert {node.op_type for node in model.graph} == {"Transpose", "Neg", "Relu"}


def test_integers_become_float16() -> None:
    x = np.array([2047, 2049, 100_000], np.int64)

    got = rounded("g (int64[3] x) => (float[3] y) { y = Cast <to = 1> (x) }", x=x)

    assert got.tolist() == [2047, 2048, 65504]


def test_bodies_of_scans_are_rounded() -> None:
    text = """g (float[3] x, float[9, 3] steps) => (float[3] last, float[9, 3] every) {
        last, every = Scan <num_scan_inputs = 1, body = step (float[3] before, float[3] new)
            => (float[3] after, float[3] out) { after = Add (before, new) \n out = Identity (after) }> (x, steps)
    }"""
    x, steps = half(numbers(3) * 100), half(numbers(9, 3))

    got = rounded(text, x=x, steps=steps)

    expected = x
    for step in steps:
        expected = half(expected + step)
    assert np.array_equal(got, expected)
    assert not np.array_equal(got, half(x + steps.sum(0)))


def test_branches_are_rounded() -> None:
    text = """g (bool c, float[3] x) => (float[3] y) {
        y = If (c) <then_branch = a () => (float[3] p) { p = Exp (x) },
                    else_branch = b () => (float[3] q) { q = Mul (x, x) }>
    }"""
    x = numbers(3)

    assert np.array_equal(rounded(text, x=x, c=np.array(False)), half(x * x))


def test_norms_are_one_operator() -> None:
    model = graph(
        "g (float[2, 64] x, float[64] w) => (float[2, 64] y) {"
        " y = qeff_zoo.RMSNorm <epsilon = 1e-6, offset = 0.0> (x, w) }",
        w=np.ones(64, np.float32),
    )
    for function in semantic.functions():
        if function.name == "RMSNorm":
            model.functions[function.identifier()] = function
    x = half(numbers(2, 64) * 2000)  # of which float16 holds no square
    device.apply(model, FP16)

    (got,) = run(model, x=x)

    np.testing.assert_allclose(got, x / np.sqrt(np.square(x).mean(1, keepdims=True)), rtol=2**-10)


def test_sigmoids_of_products_are_those_of_htps_simulator() -> None:
    text = "g (float[1, 6] x, float[6, 6] w) => (float[1, 6] y) { z = MatMul (x, w) \n y = Sigmoid (z) }"
    x = np.array([[-3.5, -1.5, 0.375, 1.625, 4.875, 7]], np.float32)

    got = rounded(text, HTP, x=x, w=np.eye(6, dtype=np.float32))

    simulated = [[0.026199, 0.185181, 0.589356, 0.832031, 0.98877, 1]]
    np.testing.assert_allclose(got, simulated, atol=6e-4)
    assert np.abs(got - 1 / (1 + np.exp(-x))).max() > 3e-3


def test_other_sigmoids_are_right() -> None:
    x = numbers(9)

    got = rounded("g (float[9] x) => (float[9] y) { y = Sigmoid (x) }", HTP, x=x)

    np.testing.assert_allclose(got, 1 / (1 + np.exp(-x)), rtol=2**-10)


#: GELU of `{x}` as GPT-2 writes it, in an order of its own.
_SMALL = """
    half = Constant <value_float = 0.5> ()
    one = Constant <value_float = 1.0> ()
    three = Constant <value_float = 3.0> ()
    cubes = Constant <value_float = 0.044715> ()
    root = Constant <value_float = 0.7978845608> ()
    halved = Mul ({x}, half)
    cube = Pow ({x}, three)
    little = Mul (cube, cubes)
    sum = Add ({x}, little)
    inner = Mul (sum, root)
    curve = Tanh (inner)
    more = Add (curve, one)
    {y} = Mul (halved, more)
"""


def test_errors_of_gelus_are_those_of_htps_simulator(tmp_path: Path) -> None:
    """A feed-forward network twice: GELU as one operator, then in small ones, as the compiler finds it too."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[1, 16, 64] x, float[64, 64] wa, float[64, 64] wb, float[64, 64] wc) => (float[1, 16, 64] y) {
        first = MatMul (x, wa)
        u = Gelu (first)
        second = MatMul (u, wb)
        """
    text += _SMALL.format(x="second", y="v") + "y = MatMul (v, wc)\n}"
    x, *weights = numbers(1, 16, 64), *(numbers(3, 64, 64) * 0.35)
    named = dict(zip(("wa", "wb", "wc"), weights, strict=True))
    (right,) = run(graph(text, **named), x=x)
    found = {}
    for numerics in (FP16, HTP):
        model = graph(text, **named)
        device.apply(model, numerics)
        found[numerics] = run(model, x=x)[0] - right
    ir.save(graph(text, **named), tmp_path / "g.onnx")
    processes.compile([str(tmp_path), "g.onnx", "out.onnx", "43", "{}"])
    simulated = processes.Simulator(tmp_path / "out.onnx", 43, 1).run({"x": x})["y"] - right

    assert 0.5 <= found[HTP].std() / simulated.std() <= 2
    # Not the largest, which is of one number at the very place where a share becomes 0.
    large, larger = (np.quantile(np.abs(one), 0.99) for one in (simulated, found[HTP]))
    assert 0.5 <= larger / large <= 2


def test_a_gelu_in_small_operators_is_found_after_a_product_alone() -> None:
    head = "g (float[1, 3] x, float[3, 3] w) => (float[1, 3] y) { z = {op} \n"
    x = np.array([[3.75, 6.0, -4.25]], np.float32)
    w = np.eye(3, dtype=np.float32)

    after = rounded(
        head.replace("{op}", "MatMul (x, w)") + _SMALL.format(x="z", y="y") + "}", HTP, x=x, w=w
    )
    other = rounded(
        head.replace("{op}", "Mul (x, w)") + _SMALL.format(x="x", y="y") + "}", HTP, x=x, w=w
    )

    assert after.tolist() == [[3.75390625, 6.0078125, 0]]
    np.testing.assert_allclose(other, x * (x > 0), atol=1e-4)


def test_quotients_of_htp_fall_short() -> None:
    x = half(np.abs(numbers(40)) + 0.1)
    text = """g (float[40] x) => (float[40] y) {
        one = Constant <value_float = 1.0> ()
        y = Div (one, x)
    }"""

    got = rounded(text, HTP, x=x)

    assert np.mean(got * x) == pytest.approx(0.99971, abs=1e-4)


@pytest.mark.parametrize(("attribute", "axis"), [("", -1), ("<axis = 0>", 0)])
def test_softmaxes_of_htp_fall_short(attribute: str, axis: int) -> None:
    x = numbers(5, 40)

    got = rounded(
        f"g (float[5, 40] x) => (float[5, 40] y) {{ y = Softmax {attribute} (x) }}", HTP, x=x
    )

    np.testing.assert_allclose(got.sum(axis), 0.99885, rtol=5e-4)


def test_angles_come_from_tables() -> None:
    text = """g (int64[1, 4] position_ids, float[1, 4] x) => (float[1, 4] y) {
        rate = Constant <value_float = 0.7> ()
        p = Cast <to = 1> (position_ids)
        angle = Mul (p, rate)
        c = Cos (angle)
        y = Mul (x, c)
    }"""
    positions, x = np.array([[3, 700, 4001, 60_000]]), half(numbers(1, 4))

    def got(*, tables: bool) -> Any:
        model = graph(text)
        device.apply(model, FP16, tables=tables)
        return run(model, position_ids=positions, x=x)[0]

    exact = np.cos((positions.astype(np.float32) * np.float32(0.7)).astype(np.float64))
    np.testing.assert_allclose(got(tables=True), x * exact, atol=2e-3)
    assert np.abs(got(tables=False) - x * exact).max() > 0.1


def test_a_graph_of_unknown_types_is_refused() -> None:
    model = graph("g (float[2] x) => (float[2] y) { a = strange.Op (x) \n y = Add (a, x) }")
    model.opset_imports["strange"] = 1

    with pytest.raises(CompileError, match="Cannot find the type of 'a', which Op computes"):
        device.apply(model, FP16)


# --- weights ----------------------------------------------------------------------------------------

PRODUCTS = {
    "matmul": ("MatMul (x, w)", (70, 5), -2),
    "linear": ("MatMul (x, t)", (5, 70), -1),
    "gemm": ("Gemm (x, w)", (70, 5), -2),
    "gemm, transposed": ("Gemm <transB = 1> (x, w)", (5, 70), -1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_lie_along_the_axis_that_is_summed_over(name: str) -> None:
    product, shape, axis = PRODUCTS[name]
    transposed = "t = Transpose <perm = [1, 0]> (w)" if "t)" in product else ""
    text = f"g (float[3, 70] x, float[{shape[0]}, {shape[1]}] w) => (float[3, 5] y) {{ {transposed} y = {product} }}"
    w, x = numbers(*shape) * np.float32(0.1), half(numbers(3, 70))

    got = rounded(text, MXFP6, x=x, w=w)

    left = microscaling.round_trip(half(w), "e2m3", axis)
    expected = x @ (left if axis == -2 else left.T)
    np.testing.assert_allclose(got, expected, rtol=2**-10, atol=1e-4)
    other = x @ (half(w) if axis == -2 else half(w).T)
    assert np.abs(got - other).max() > 10 * np.abs(got - expected).max()


def test_one_of_a_stack_is_a_matrix() -> None:
    text = """g (float[3, 64] x, float[4, 5, 64] w) => (float[3, 5] y) {
        two = Constant <value_int = 2> ()
        one = Gather <axis = 0> (w, two)
        t = Transpose <perm = [1, 0]> (one)
        y = MatMul (x, t)
    }"""
    w, x = numbers(4, 5, 64), half(numbers(3, 64))

    got = rounded(text, MXFP6, x=x, w=w)

    np.testing.assert_allclose(
        got, x @ microscaling.round_trip(half(w[2]), "e2m3").T, rtol=2**-10, atol=1e-4
    )


def test_of_tied_weights_the_product_alone_has_mxfp6() -> None:
    text = """g (int64[3] ids, float[9, 64] w) => (float[3, 64] e, float[3, 9] y) {
        e = Gather (w, ids)
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul (e, t)
    }"""
    w, ids = numbers(9, 64), np.array([1, 8, 0])
    model = graph(text, w=w)
    device.apply(model, MXFP6)

    embedded, product = run(model, ids=ids)

    assert np.array_equal(embedded, half(w)[ids])
    expected = half(w)[ids] @ microscaling.round_trip(half(w), "e2m3").T
    np.testing.assert_allclose(product, expected, rtol=2**-10, atol=1e-3)
    (matrix,) = device.matrices(model)
    assert (matrix.name, matrix.rows, matrix.columns, matrix.input_major) == ("w", 9, 64, False)


def test_computed_tensor_is_no_weight() -> None:
    text = "g (float[3, 4] x) => (float[3, 3] y) { t = Transpose <perm = [1, 0]> (x) \n y = MatMul (x, t) }"
    x = half(numbers(3, 4))

    assert np.array_equal(rounded(text, MXFP6, x=x), rounded(text, x=x))


def test_kept_weights_stay_in_float32_and_so_does_what_reads_them() -> None:
    text = """g (float[3, 64] x, float[64, 64] w_a, float[64, 5] w_b) => (float[3, 5] y) {
        a = MatMul (x, w_a)
        y = MatMul (a, w_b)
    }"""
    a, b, x = numbers(64, 64), numbers(64, 5), half(numbers(3, 64))
    kept = DeviceNumerics(weights="mxfp6", keep=("w_b",))

    got = rounded(text, kept, x=x, w_a=a, w_b=b)

    middle = half(x @ microscaling.round_trip(half(a), "e2m3", -2))
    np.testing.assert_allclose(got, middle @ b, rtol=1e-3, atol=2e-2)
    assert not np.array_equal(got, half(got))
    assert kept.keeps("w_b")
    assert not kept.keeps("w_bias")


def test_weights_are_rounded_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Any] = []
    monkeypatch.setattr(device, "round_trip", lambda *a: requested.append(a) or round_trip(*a))
    model = graph(
        "g (float[3, 64] x, float[64, 64] w) => (float[3, 64] y) { y = MatMul (x, w) }",
        w=numbers(64, 64),
    )

    device.apply(model, MXFP6)

    assert requested == []
    (weight,) = model.graph.initializers.values()
    assert weight.const_value is not None
    weight.const_value.numpy()
    assert len(requested) == 1


# --- states -----------------------------------------------------------------------------------------


def state(kind: states.StateKind, width: int) -> ir.Model:
    model = graph(
        f"g (float[2, 3, 8, {width}] past, float[2, 3, 8, {width}] x)"
        f" => (float[2, 3, 8, {width}] past_RetainedState, float[2, 3, 8, {width}] y)"
        " { past_RetainedState = Add (past, x) \n y = Identity (past_RetainedState) }"
    )
    states.mark(model.graph.inputs[0], kind, 0)
    return model


@pytest.mark.parametrize("width", [32, 64, 80, 7])
def test_states_are_rounded_as_numpy_does_bit_for_bit(width: int) -> None:
    model = state("growing", width)
    device.apply(model, MXINT8)
    random = np.random.default_rng(0)
    exponents = random.integers(-24, 15, (2, 3, 8, 1))
    x = half(np.ldexp(random.standard_normal((2, 3, 8, width)), exponents).astype(np.float32))
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2, 0] = 0, 65504, 2.0**-24

    for optimized in (True, False):
        new, read = run(model, optimized=optimized, past=np.zeros_like(x), x=x)
        again, _ = run(model, optimized=optimized, past=new, x=np.zeros_like(x))

        assert np.array_equal(new, microscaling.round_trip(x, "int8"))
        assert np.array_equal(read, new)  # what reads the state reads it rounded
        assert np.array_equal(again, microscaling.round_trip(half(new), "int8"))


@pytest.mark.parametrize(
    ("kind", "numerics"), [("recurrent", MXINT8), ("growing", FP16), ("window", FP16)]
)
def test_other_states_are_float16(kind: states.StateKind, numerics: DeviceNumerics) -> None:
    model = state(kind, 32)
    device.apply(model, numerics)
    x = numbers(2, 3, 8, 32)

    new, _ = run(model, past=np.zeros_like(x), x=x)

    assert np.array_equal(new, half(x))


def test_a_saved_model_reads_rounded_weights(tmp_path: Path) -> None:
    w, x = numbers(64, 64), half(numbers(3, 64))
    model = graph(
        "g (float[3, 64] x, float[64, 64] w) => (float[3, 64] y) { y = MatMul (x, w) }", w=w
    )
    device.apply(model, MXFP6)

    ir.save(model, tmp_path / "g.onnx", external_data="g.data")

    session = onnxruntime.InferenceSession(tmp_path / "g.onnx")
    expected = x @ microscaling.round_trip(half(w), "e2m3", -2)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=2**-10, atol=1e-3)


def test_mxfp6_of_float16_is_what_ml_dtypes_calls_e2m3() -> None:
    assert microscaling.ELEMENTS["e2m3"].dtype is ml_dtypes.float6_e2m3fn


# --- the file of rounded weights -------------------------------------------------------------------


def test_rounded_weights_are_written_once(tmp_path: Path) -> None:
    weights, rounded_weights = numbers(64, 64), RoundedWeights(tmp_path / "rounded.data")
    sizes = []
    for _ in range(2):
        model = graph(
            "g (float[2, 64] x, float[64, 64] w) => (float[2, 64] y) { y = MatMul (x, w) }",
            w=weights,
        )
        device.apply(model, MXFP6)
        rounded_weights.place(model)
        ir.save(model, tmp_path / "graph.onnx")
        sizes.append((tmp_path / "rounded.data").stat().st_size)

    session = onnxruntime.InferenceSession(tmp_path / "graph.onnx")
    (got,) = session.run(None, {"x": np.eye(2, 64, dtype=np.float32)})
    assert sizes == [weights.nbytes] * 2
    np.testing.assert_array_equal(got, half(round_trip(half(weights), replace(MX, axis=-2)))[:2])


def test_rounded_weights_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph(
        "g (float[2, 64] x, float[64, 64] w) => (float[2, 64] y) { y = MatMul (x, w) }",
        w=numbers(64, 64),
    )
    device.apply(model, FP16)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * 64 * 4 - 1))

    with pytest.raises(StoreError, match="Cannot write rounded weights to"):
        RoundedWeights(tmp_path / "rounded.data").place(model)

    assert not list(tmp_path.iterdir())
