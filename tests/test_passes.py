# SPDX-License-Identifier: Apache-2.0
"""Each ONNX pass on a graph of a few nodes: what it changes, what it leaves, and that nothing else is computed."""

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from qeff_zoo import semantic
from qeff_zoo.passes import bfloat16, bodies, linear, rotary
from qeff_zoo.semantic.domains import SEMANTIC

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


def test_what_all_ops_of_the_pass_are_tested() -> None:
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
def test_what_is_no_rotation_of_all_heads_stays(changes: dict[str, str]) -> None:
    model, _ = rotated_heads(**changes)
    node = next(one for one in model.graph if one.op_type == "RMSNorm")
    assert node.inputs[0] is not None
    assert "RotaryEmbedding" not in str(node.inputs[0].producer())


def test_a_rotation_inside_something_else_is_found() -> None:
    model, count = rotated_heads(heads="Mul (rotated, by_head)")
    assert count == 1
    assert kinds(model)[-3:] == ["RotaryEmbedding", "Mul", "RMSNorm"]
