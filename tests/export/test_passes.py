# SPDX-License-Identifier: Apache-2.0
"""Each ONNX pass on a graph of a few nodes: what it changes, what it leaves, and that nothing else is computed."""

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph import constants, semantic
from qeff_zoo.graph.external_data import placeholder
from qeff_zoo.graph.passes import (
    bfloat16,
    bodies,
    layers,
    linear,
    narrowing,
    needed_tokens,
    position_tables,
    rotary,
    sequences,
    whole_numbers,
    whole_units,
)
from qeff_zoo.graph.semantic.domains import LAYERS, SEMANTIC
from qeff_zoo.weights import moves, stacks

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
FLOAT, BFLOAT16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16


def value(name: str, dtype: ir.DataType = FLOAT, shape: list[Any] | None = None) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape or [None]))


def weight(name: str, data: Array) -> ir.Value:
    tensor = ir.tensor(data, name=name)
    return ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )


def node(op: str, inputs: list[ir.Value], dtype: ir.DataType = FLOAT, **attributes: Any) -> ir.Node:
    made = ir.node(op, inputs, attributes)
    made.name = f"{op}_{id(made)}"
    made.outputs[0].name, made.outputs[0].type = f"out_{made.name}", ir.TensorType(dtype)
    return made


def model_of(inputs: list[ir.Value], nodes: list[ir.Node], weights: list[ir.Value]) -> ir.Model:
    outputs = [nodes[-1].outputs[0]]
    outputs[0].shape = outputs[0].shape or ir.Shape([None] * 2)
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        initializers=weights,
        opset_imports={"": 18, SEMANTIC: 1},
        name="small",
    )
    functions = [f for f in semantic.functions() if f.name == "Linear"]
    return ir.Model(graph, ir_version=10, functions=functions)


def run(model: ir.Model, **feeds: Array) -> Array:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def kinds(model: ir.Model) -> list[str]:
    return [one.op_type for one in model.graph]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- linear --------------------------------------------------------------------------------------


def product(weights: Array, perm: list[int] | None) -> ir.Model:
    x, w = value("x", shape=[None, 3]), weight("w", weights)
    turned = node("Transpose", [w], **({} if perm is None else {"perm": perm}))
    matmul = node("MatMul", [x, turned.outputs[0]])
    return model_of([x], [turned, matmul], [w])


@pytest.mark.parametrize("perm", [None, [1, 0]])
def test_product_with_a_turned_weight_becomes_linear(perm: list[int] | None) -> None:
    x, w = normal(0, 2, 3), normal(1, 4, 3)
    model = product(w, perm)
    assert linear.recognize(model) == 1
    (found,) = [one for one in model.graph if one.op_type == "Linear"]
    assert found.domain == SEMANTIC
    assert [v.name for v in found.inputs if v] == ["x", "w"]
    assert "MatMul" not in kinds(model)
    np.testing.assert_allclose(run(model, x=x), x @ w.T, rtol=1e-5, atol=1e-6)


def test_a_transpose_that_turns_nothing_is_no_linear() -> None:
    x, w = normal(0, 2, 3), normal(1, 3, 3)
    model = product(w, [0, 1])
    linear.recognize(model)
    np.testing.assert_allclose(run(model, x=x), x @ w, rtol=1e-5, atol=1e-6)


def test_a_product_with_an_unturned_weight_stays() -> None:
    x, w = value("x", shape=[None, 3]), weight("w", normal(1, 3, 4))
    model = model_of([x], [node("MatMul", [x, w])], [w])
    assert linear.recognize(model) == 0
    assert kinds(model) == ["MatMul"]


def test_a_product_of_activations_stays() -> None:
    """Attention multiplies by transposed keys."""
    x, y = value("x", shape=[2, 3]), value("y", shape=[4, 3])
    turned = node("Transpose", [y], perm=[1, 0])
    model = model_of([x, y], [turned, node("MatMul", [x, turned.outputs[0]])], [])
    assert linear.recognize(model) == 0
    assert kinds(model) == ["Transpose", "MatMul"]


def test_a_stack_of_matrices_stays() -> None:
    x, w = value("x", shape=[2, 3, 3]), weight("w", normal(1, 2, 4, 3))
    turned = node("Transpose", [w], perm=[0, 2, 1])
    model = model_of([x], [turned, node("MatMul", [x, turned.outputs[0]])], [w])
    assert linear.recognize(model) == 0


def test_a_turned_weight_of_two_products_becomes_two() -> None:
    x, w = value("x", shape=[None, 3]), weight("w", normal(1, 3, 3))
    turned = node("Transpose", [w], perm=[1, 0])
    first = node("MatMul", [x, turned.outputs[0]])
    second = node("MatMul", [first.outputs[0], turned.outputs[0]])
    model = model_of([x], [turned, first, second], [w])
    data, matrix = normal(0, 2, 3), w.const_value.numpy()
    assert linear.recognize(model) == 2
    expected = data @ matrix.T @ matrix.T
    np.testing.assert_allclose(run(model, x=data), expected, rtol=1e-5, atol=1e-5)


def test_module_paths_stay_with_the_new_node() -> None:
    """Layers are cut by them."""
    model = product(normal(1, 4, 3), [1, 0])
    matmul = next(one for one in model.graph if one.op_type == "MatMul")
    matmul.metadata_props["namespace"] = "model/model.layers.3"
    linear.recognize(model)
    (found,) = [one for one in model.graph if one.op_type == "Linear"]
    assert found.metadata_props["namespace"] == "model/model.layers.3"


# --- bfloat16 ------------------------------------------------------------------------------------

TORCH = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Pow": torch.pow,
    "Neg": torch.neg,
    "Exp": torch.exp,
    "Sqrt": torch.sqrt,
    "Cos": torch.cos,
    "Sin": torch.sin,
}


def rounded(op: str, *, twice: bool = False) -> ir.Model:
    """Compute in bfloat16 between casts from and to float32."""
    count = 1 if op in {"Neg", "Exp", "Sqrt", "Cos", "Sin"} else 2
    inputs = [value(name, shape=[None, 8]) for name in ("x", "y")[:count]]
    casts = [node("Cast", [one], BFLOAT16, to=BFLOAT16.value) for one in inputs]
    nodes = [*casts, node(op, [cast.outputs[0] for cast in casts], BFLOAT16)]
    if twice:
        nodes.append(node("Add", [nodes[-1].outputs[0], casts[0].outputs[0]], BFLOAT16))
    nodes.append(node("Cast", [nodes[-1].outputs[0]], to=FLOAT.value))
    return model_of(inputs, nodes, [])


@pytest.mark.parametrize("op", TORCH)
def test_bfloat16_arithmetic_is_rounded_float32_arithmetic(op: str) -> None:
    model = rounded(op)
    assert bfloat16.widen(model) == 1
    feeds = [np.abs(normal(seed, 5, 8)) + 0.1 for seed in range(len(model.graph.inputs))]
    expected = TORCH[op](*(torch.from_numpy(feed).bfloat16() for feed in feeds)).float().numpy()
    got = run(model, **dict(zip("xy", feeds, strict=False)))
    np.testing.assert_array_equal(got, expected)
    exact = TORCH[op](*(torch.from_numpy(feed).bfloat16().float() for feed in feeds)).numpy()
    assert (got != exact).any() or op == "Neg"


def test_every_step_of_a_chain_is_rounded() -> None:
    model = rounded("Mul", twice=True)
    assert bfloat16.widen(model) == 2
    x, y = normal(0, 5, 8), normal(1, 5, 8)
    a, b = (torch.from_numpy(feed).bfloat16() for feed in (x, y))
    np.testing.assert_array_equal(run(model, x=x, y=y), (a * b + a).float().numpy())


def test_every_op_of_the_bfloat16_pass_is_tested() -> None:
    assert set(TORCH) == bfloat16._ARITHMETIC


def test_float32_arithmetic_stays() -> None:
    x, y = value("x", shape=[None, 8]), value("y", shape=[None, 8])
    model = model_of([x, y], [node("Add", [x, y])], [])
    assert bfloat16.widen(model) == 0
    assert kinds(model) == ["Add"]


def test_module_paths_stay_with_the_casts() -> None:
    model = rounded("Add")
    add = next(one for one in model.graph if one.op_type == "Add")
    add.metadata_props["namespace"] = "model/model.layers.3"
    bfloat16.widen(model)
    around = [one for one in model.graph if one.metadata_props.get("namespace")]
    assert len(around) == 4  # two inputs widened, the sum, the result rounded


# --- rotary embedding ----------------------------------------------------------------------------

_ROTATED = """
<ir_version: 10, opset_import: ["": 18, "qeff_zoo": 1]>
main (float[b, 3, s, 8] x, int64[b, s] position_ids, float[8] weight) => (float[b, 3, s, 8] y)
<float[1, 3, 1, 1] by_head = {{1.0, 2.0, 3.0}}, float[4] frequency = {{1.0, 0.5, 0.25, 0.125}},
 float[b, s, 4] cos, float[b, s, 4] sin, float[b, s, 8] cos_twice, float[b, 1, s, 8] cos_rows,
 float[b, s, 8] sin_twice, float[b, 1, s, 8] sin_rows, float[b, 3, s, 8] rotated,
 float[b, 3, s, 8] heads>
{{
    last = Constant <value_ints = [-1]> ()
    first = Constant <value_ints = [1]> ()
    zero = Constant <value_ints = [0]> ()
    half = Constant <value_ints = [4]> ()
    whole = Constant <value_ints = [8]> ()
    column = Unsqueeze (position_ids, last)
    position = Cast <to = 1> (column)
    angle = Mul (position, frequency)
    cos = Cos (angle)
    sin = Sin (angle)
    cos_twice = Concat <axis = -1> (cos, cos)
    sin_twice = Concat <axis = -1> (sin, sin)
    cos_rows = Unsqueeze (cos_twice, first)
    sin_rows = Unsqueeze (sin_twice, first)
    one = Slice (x, zero, half, last)
    other = Slice (x, half, whole, last)
    opposite = Neg (other)
    swapped = Concat <axis = -1> ({swapped})
    straight = Mul (x, cos_rows)
    across = Mul (swapped, sin_rows)
    rotated = Add (straight, across)
    heads = {heads}
    y = qeff_zoo.RMSNorm <epsilon = 1e-6, offset = 0.0> (heads, weight)
}}"""


def rotated_heads(
    swapped: str = "opposite, one", heads: str = "Identity (rotated)"
) -> tuple[ir.Model, int]:
    """Make a model that rotates heads, and let the pass change it."""
    model = ir.from_onnx_text(_ROTATED.format(swapped=swapped, heads=heads))
    count = rotary.recognize(model)
    bodies.attach(model)
    return model, count


def test_a_rotation_of_halves_becomes_a_rotary_embedding() -> None:
    model, count = rotated_heads()
    assert count == 1
    assert "Neg" not in kinds(model)
    (found,) = [one for one in model.graph if one.op_type == "RotaryEmbedding"]
    # Cosines and sines as they are computed, not as they are laid out for heads.
    assert [one.name for one in found.inputs if one] == ["x", "cos", "sin"]
    assert found.attributes["rotary_embedding_dim"].value == 8
    assert found.attributes["interleaved"].value == 0
    whole = ir.from_onnx_text(_ROTATED.format(swapped="opposite, one", heads="Identity (rotated)"))
    bodies.attach(whole)
    feeds = {"x": normal(0, 2, 3, 5, 8), "weight": normal(1, 8)}
    feeds["position_ids"] = np.random.default_rng(2).integers(0, 99, (2, 5))
    np.testing.assert_array_equal(run(model, **feeds), run(whole, **feeds))


@pytest.mark.parametrize(
    "changes",
    [
        {"swapped": "other, one"},  # a reflection
        {"swapped": "one, opposite"},
        {"heads": "Mul (rotated, by_head)"},
        {"heads": "Add (rotated, position)"},
        {"heads": "Mul (rotated, rotated)"},
    ],
)
def test_partial_rotations_are_unchanged(changes: dict[str, str]) -> None:
    model, _ = rotated_heads(**changes)
    node = next(one for one in model.graph if one.op_type == "RMSNorm")
    assert node.inputs[0] is not None
    assert "RotaryEmbedding" not in str(node.inputs[0].producer())


def test_a_rotation_inside_something_else_is_found() -> None:
    model, count = rotated_heads(heads="Mul (rotated, by_head)")
    assert count == 1
    assert kinds(model)[-3:] == ["RotaryEmbedding", "Mul", "RMSNorm"]


# --- tables of positions -------------------------------------------------------------------------

_ANGLES = """
<ir_version: 10, opset_import: ["": 18]>
main (int64[batch_size, seq_len] position_ids) => (float[{shape}] y)
<float[2] frequency = {{1.0, 0.25}}, int64[1, 1, 1] kinds = {{0}}, int64[3, 1, 1] three = {{0, 0, 0}}>
{{
    last = Constant <value_ints = [-1]> ()
    many = Add (position_ids, {kinds})
    column = Unsqueeze (many, last)
    position = Cast <to = 1> (column)
    angle = Mul (position, frequency)
    y = Cos (angle)
}}"""


@pytest.mark.parametrize(
    ("kinds", "shape"),
    [("kinds", "1, batch_size, seq_len, 2"), ("three", "3, batch_size, seq_len, 2")],
)
def test_angles_of_several_kinds_of_positions_are_looked_up(kinds: str, shape: str) -> None:
    model, whole = (ir.from_onnx_text(_ANGLES.format(kinds=kinds, shape=shape)) for _ in range(2))
    assert position_tables.tabulate(model.graph, 50) == 1
    onnx_passes.RemoveUnusedNodesPass()(model)
    assert "Cos" not in [one.op_type for one in model.graph]
    positions = np.array([[0, 7, 49], [3, 1, 20]])
    found, expected = (run(one, position_ids=positions) for one in (model, whole))
    np.testing.assert_allclose(found, expected, atol=1e-6)


_AXES = """
<ir_version: 10, opset_import: ["": 18]>
main (int64[{given}] {name}) => (float[{shape}] y)
<float[4] frequency = {{1.0, 0.5, 0.25, 0.125}}, int64[4] axis = {{0, 1, 0, 1}}>
{{
    last = Constant <value_ints = [-1]> ()
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    position = Cast <to = 1> ({name})
    first = Gather <axis = {along}> (position, zero)
    second = Gather <axis = {along}> (position, one)
    row = Unsqueeze (first, last)
    column = Unsqueeze (second, last)
    of_row = Equal (axis, zero)
    mixed = Where (of_row, row, column)
    each = Unsqueeze (position, last)
    both = Add (row, column)
    angle = Mul ({read}, frequency)
    y = Cos (angle)
}}"""
_TOKENS = {"given": "2, batch_size, seq_len", "name": "rope_positions", "along": 0}
_PATCHES = {"given": "patches, 2", "name": "position_ids", "along": 1}


@pytest.mark.parametrize(
    ("form", "read", "shape", "tables"),
    [
        (_TOKENS, "each", "2, batch_size, seq_len, 4", 1),  # every axis has a row of its own
        (_TOKENS, "mixed", "batch_size, seq_len, 4", 1),
        (_PATCHES, "each", "patches, 2, 4", 1),
        (_PATCHES, "mixed", "patches, 4", 1),
        (_PATCHES, "both", "patches, 4", 0),  # no row of a table says that
    ],
)
def test_angles_of_several_axes_are_looked_up(
    form: dict[str, Any], read: str, shape: str, tables: int
) -> None:
    text = _AXES.format(**form, read=read, shape=shape)
    model, whole = (ir.from_onnx_text(text) for _ in range(2))
    assert position_tables.tabulate(model.graph, 50) == tables
    onnx_passes.RemoveUnusedNodesPass()(model)
    assert ("Cos" in [one.op_type for one in model.graph]) == (not tables)
    size = (2, 2, 7) if form is _TOKENS else (7, 2)
    positions = np.random.default_rng(0).integers(0, 50, size)
    found, expected = (run(one, **{form["name"]: positions}) for one in (model, whole))
    np.testing.assert_array_equal(found, expected)


_WINDOWS = """
<ir_version: 10, opset_import: ["": 18]>
main (int64[1] window_ids, float[3] other) => (float[1, 3] y)
<float[4, 3] times = {0, 1, 2, 300, 301, 302, 600, 601, 602, 900, 901, 902}>
{
    time = Gather <axis = 0> (times, window_ids)
    angle = Mul (time, time)
    looked_up = Cos (angle)
    moved = Add (time, other)
    computed = Sin (moved)
    y = Add (looked_up, computed)
}"""


def test_angles_of_an_audio_window_are_selected_by_its_number() -> None:
    model, whole = (ir.from_onnx_text(_WINDOWS) for _ in range(2))
    assert position_tables.tabulate(model.graph, 50) == 1
    assert [one.op_type for one in model.graph if one.op_type in ("Cos", "Sin")] == ["Sin"]
    given = {"window_ids": np.array([2]), "other": np.zeros(3, np.float32)}
    found, expected = (run(one, **given) for one in (model, whole))
    np.testing.assert_array_equal(found, expected)


_UNITS = """
<ir_version: 10, opset_import: ["": 18]>
main (float[batch_size, frames, 2] x, int64[batch_size, frames] mask) => (float[batch_size, units, 8] y)
{
    shape = Constant <value_ints = [0, -1, 8]> ()
    units = Reshape (x, shape)
    last = Constant <value_ints = [-1]> ()
    real = Cast <to = 1> (mask)
    sum = ReduceSum <keepdims = 0> (real, last)
    ones = Constant <value_ints = [-1, 1, 1]> ()
    count = Reshape (sum, ones)
    y = Mul (units, count)
}"""


@pytest.mark.parametrize("length", [4, 5, 7, 8])
def test_a_graph_of_whole_units_fills_them_up(length: int) -> None:
    model = ir.from_onnx_text(_UNITS)
    whole_units.fill_up(model.graph, 4)
    assert [str(value.shape[1]) for value in model.graph.inputs] == ["seq_len"] * 2
    x = np.arange(2 * length * 2, dtype=np.float32).reshape(2, length, 2)
    found = run(model, x=x, mask=np.ones((2, length), np.int64)) / length
    units = -(-length // 4)
    expected = np.pad(x, ((0, 0), (0, 4 * units - length), (0, 0))).reshape(2, units, 8)
    np.testing.assert_allclose(found, expected)


# --- constants that devices hold -----------------------------------------------------------------


def test_constants_are_brought_into_the_range_of_devices() -> None:
    far = np.array([-3.4e38, -7e4, -65504, -np.inf, np.inf, 1e9, 5], np.float32)
    stored, numbers = weight("far", far), ir.node("Constant", [], {"value_ints": [1 << 40, -7]})
    lowest = ir.node("Constant", [], {"value_float": -3.4e38})
    highest = ir.node("Constant", [], {"value_int": -(1 << 63)})
    inside = ir.node("Constant", [], {"value_ints": [2**31 - 1, -(2**31)]})
    nodes = [numbers, lowest, highest, inside, ir.node("Identity", [stored])]
    nodes[-1].outputs[0].type = ir.TensorType(FLOAT)
    model = model_of([], nodes, [stored])
    assert narrowing.narrow(model) == 4
    hidden = narrowing.HIDDEN
    assert model.graph.initializers["far"].const_value.numpy().tolist() == [
        *(hidden, hidden, -65504, -np.inf, np.inf, 65504, 5)
    ]
    found = [
        ir.convenience.get_const_tensor(one.outputs[0]).numpy().tolist()
        for one in list(model.graph)[:4]
    ]
    assert found == [[2**31 - 1, -7], hidden, -(2**31), [2**31 - 1, -(2**31)]]


# --- parts of a sequence -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "place", "first", "last"), [([2, 5], 1, 2, 7), ([2, 5], -2, 0, 2), (3, 2, 6, 7)]
)
def test_parts_of_a_sequence_become_slices(sizes: Any, place: int, first: int, last: int) -> None:
    x = value("x", shape=[None, 7])
    given, at = weight("sizes", np.array(sizes)), weight("at", np.array(place))
    split = node("SplitToSequence", [x, given], axis=1)
    split.outputs[0].type = ir.SequenceType(ir.TensorType(FLOAT))
    model = model_of([x], [split, node("SequenceAt", [split.outputs[0], at])], [given, at])
    assert sequences.slice_parts(model.graph) == 1
    assert "SequenceAt" not in kinds(model)
    data = normal(0, 2, 7)
    onnx_passes.RemoveUnusedNodesPass()(model)
    np.testing.assert_array_equal(run(model, x=data), data[:, first:last])


# --- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("divisor", "count"), [(5.0, 1), (2.5, 0)])
def test_whole_numbers_are_divided_as_such(divisor: float, count: int) -> None:
    """Rounded down as torch does, also below zero; what is divided by no whole number stays."""
    whole = ir.DataType.INT64
    x, by = value("x", whole, [None]), weight("by", np.array(divisor, np.float32))
    cast = node("Cast", [x], to=FLOAT)
    shares = node("Div", [cast.outputs[0], by])
    floor = node("Floor", [shares.outputs[0]])
    model = model_of(
        [x], [cast, shares, floor, node("Cast", [floor.outputs[0]], whole, to=whole)], [by]
    )
    assert whole_numbers.divide(model.graph) == count
    onnx_passes.RemoveUnusedNodesPass()(model)
    assert ("Floor" in kinds(model)) is (count == 0)
    data = np.array([-11, -5, -1, 0, 4, 5, 65_504, 79_990, 479_990])
    np.testing.assert_array_equal(run(model, x=data), np.floor_divide(data, divisor))


# --- layers in names -----------------------------------------------------------------------------


def stored(name: str) -> ir.Value:
    made = value(name, shape=[4, 4])
    made.const_value = placeholder(name, FLOAT, [4, 4])
    return made


def test_nodes_record_the_layer_that_they_were_inlined_from() -> None:
    x, weights = (
        value("x", shape=[None, 4]),
        [stored(f"model.layers.{i}.up.weight") for i in (0, 1)],
    )
    given = [value("x"), value("weight")]
    product = node("MatMul", given)
    body = [product, node("Relu", [product.outputs[0]])]
    graph = ir.Graph(given, [body[-1].outputs[0]], nodes=body, opset_imports={"": 18})
    function = ir.Function(LAYERS, "Layer0", graph=graph, attributes=[])
    calls = []
    for number, one in enumerate(weights):
        before = calls[-1].outputs[0] if calls else x
        call = ir.node("Layer0", [before, one], domain=LAYERS, name=f"model.layers.{number}")
        call.outputs[0].name, call.outputs[0].type = f"y{number}", ir.TensorType(FLOAT)
        calls.append(call)
    model = model_of([x], [*calls, node("Relu", [calls[-1].outputs[0]])], weights)
    model.functions[function.identifier()] = function
    layers.inline(model)
    layers.name_nodes(model)
    assert layers.layers_of(model) == [
        (0, "/model/layers.0/up/MatMul"),
        (0, "/model/layers.0/Relu"),
        (1, "/model/layers.1/up/MatMul"),
        (1, "/model/layers.1/Relu"),
        (None, "/Relu"),
    ]


def test_without_functions_weights_determine_the_layer() -> None:
    x = value("x", shape=[None, 4])
    names = ["embed.weight", "h.0.up.weight", "h.1.up.weight", "norm.weight"]
    weights, nodes = [stored(name) for name in names], []
    for one in weights:
        product = node("MatMul", [nodes[-1].outputs[0] if nodes else x, one])
        nodes += [product, node("Relu", [product.outputs[0]])]
    model = model_of([x], nodes, weights)
    layers.inline(model)
    layers.name_nodes(model)
    assert layers.layers_of(model) == [
        (None, "/embed/MatMul"),
        (None, "/Relu"),
        (0, "/h.0/up/MatMul"),
        (0, "/h.0/Relu"),
        (1, "/h.1/up/MatMul"),
        (1, "/h.1/Relu"),
        (None, "/norm/MatMul"),
        (None, "/Relu_1"),
    ]


# --- needed tokens -------------------------------------------------------------------------------

_DECODER = """<ir_version: 10, opset_import: ["": 18, "qeff_zoo": 1]>
decoder (int64[batch_size, seq_len] input_ids, int64[batch_size, seq_len] position_ids,
         float[9, 4] table, float[4, 4] one, float[4, 4] two, float[5, 4] head, float[8, 4] wide)
    => (float[batch_size, 1, 5] logits{outputs})
{{
    rows = Shape <start = 0, end = 1> (input_ids)
    length = Shape <start = 1, end = 2> (input_ids)
    last = Constant <value_ints = [-1]> ()
    sizes = Concat <axis = 0> (rows, length, last)
    embedded = Gather (table, input_ids)
    axis = Constant <value_int = 1> ()
    axes_of_tokens = Constant <value_ints = [1]> ()
    mixed = CumSum (embedded, axis)
    heads = Reshape (mixed, sizes)
    projected = qeff_zoo.Linear (heads, one)
    residual = Add (embedded, projected)
    {between}
    half = Constant <value_float = 0.5> ()
    scaled = Mul (between, half)
    more = qeff_zoo.Linear (scaled, two)
    active = Sigmoid (more)
    hidden = Add (between, active)
    start = Constant <value_ints = [0]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    axes = Constant <value_ints = [1]> ()
    kept = Slice (hidden, start, end, axes)
    newest = ArgMax <axis = 1> (position_ids)
    columns = Unsqueeze (newest, last)
    shape = Constant <value_ints = [1, 1, 4]> ()
    index = Expand (columns, shape)
    picked = GatherElements <axis = 1> (kept, index)
    logits = qeff_zoo.Linear (picked, head)
}}"""


def decoder(between: str, outputs: str = "") -> ir.Model:
    model = ir.from_onnx_text(_DECODER.format(between=between, outputs=outputs))
    graph = model.graph
    for number, given in enumerate(graph.inputs[2:]):
        given.const_value = ir.tensor(normal(number, *given.shape.numpy()), name=given.name)
        graph.initializers[given.name] = given
    del graph.inputs[2:]
    for function in semantic.functions(["Linear"]):
        model.functions[function.identifier()] = function
    return model


@pytest.mark.parametrize(
    ("between", "outputs", "moved"),
    [
        pytest.param("between = Identity (residual)", "", 2, id="behind the last attention"),
        pytest.param(
            "both = qeff_zoo.Linear (residual, wide) gate, up = Split <axis = -1, num_outputs = 2> (both) "
            "between = Mul (gate, up)",
            *("", 3),
            id="gate and up in one product",
        ),
        pytest.param(
            "mean = ReduceMean (residual, last) between = Sub (residual, mean)",
            *("", 2),
            id="a norm in several steps",
        ),
        pytest.param(
            "mean = ReduceMean (residual, axes_of_tokens) between = Sub (residual, mean)",
            *("", 0),
            id="less the mean of all tokens",
        ),
        pytest.param(
            "mixed_again = CumSum (residual, axis) between = Reshape (mixed_again, sizes)",
            *("", 1),
            id="tokens are mixed once more",
        ),
        pytest.param("between = CumSum (residual, axis)", "", 0, id="mixed in an unknown way"),
        pytest.param(
            "floats = Cast <to = 1> (position_ids) added = Unsqueeze (floats, last) between = Add (residual, added)",
            *("", 0),
            id="an operand of unknown sizes",
        ),
        pytest.param(
            "between = Identity (residual)",
            *(", float[batch_size, seq_len, 4] between", 1),
            id="a value of all tokens is returned",
        ),
        pytest.param(
            "between = Identity (residual)",
            *(", float[batch_size, seq_len, 4] hidden", 0),
            id="the result for all tokens is returned",
        ),
    ],
)
def test_products_behind_the_last_attention_are_of_needed_tokens(
    between: str, outputs: str, moved: int
) -> None:
    model, whole = (decoder(between, outputs) for _ in range(2))
    assert needed_tokens.pick_early(model.graph) == moved
    found = {one.op_type for one in model.graph}
    assert ("GatherND" in found, "GatherElements" in found) == (moved > 0, moved == 0)
    ids = np.random.default_rng(1).integers(0, 9, (3, 5))
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, -1, -1, -1], [-1] * 5])
    for tokens in (5, 1):
        feeds = {"input_ids": ids[:, :tokens], "position_ids": positions[:, :tokens]}
        np.testing.assert_allclose(run(model, **feeds), run(whole, **feeds), rtol=1e-5, atol=1e-6)


# --- constants -----------------------------------------------------------------------------------


def test_data_of_weights_are_not_read_where_no_number_is_expected() -> None:
    table, rows = (
        value(name, dtype, [3]) for name, dtype in (("a", FLOAT), ("b", ir.DataType.INT64))
    )
    table.const_value = placeholder("a", FLOAT, [3])
    rows.const_value = placeholder("b", ir.DataType.INT64, [3])
    assert constants.number_of(table) is None
    gather = ir.node("Gather", [table, rows])
    assert stacks.picked(gather.outputs[0]) == (None, 0)
    known = {table: moves.Moved("a", ("load", "a"), (3,))}
    assert moves.moved(gather, known) == []
