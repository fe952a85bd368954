# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts: which become one op, and which op becomes one kernel."""

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import parity
import pytest

from qeff_zoo.checkpoint.expressions import sources_of
from qeff_zoo.graph import semantic
from qeff_zoo.graph.passes import experts as experts_pass
from qeff_zoo.graph.semantic import domains
from qeff_zoo.targets.ort import experts, routing

ROUTED = "own_tokens:"


def grouped(cases: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.together(case[0])) for case in cases]


def blocks(name: str) -> list[dict[str, float]]:
    """Give the gates of all blocks of experts of a portable graph."""
    model = parity.subject(name).graph()
    nodes = [node for part in (model.graph, *model.functions.values()) for node in part]
    return [
        {key: node.attributes.get_float(key, 0.0) for key in ("alpha", "limit", "offset")}
        for node in nodes
        if experts_pass.is_experts(node)
    ]


@pytest.mark.parametrize(
    ("name", "gate"),
    grouped(
        [
            (
                "mixtral-base",
                {"alpha": 1.0, "limit": pytest.approx(3.4e38, rel=0.01), "offset": 0.0},
            ),
            ("gpt_oss-base", {"alpha": pytest.approx(1.702), "limit": 1.5, "offset": 1.0}),
        ]
    ),
)
@pytest.mark.sampled(2)
def test_a_gate_is_found_by_trying_it(name: str, gate: dict[str, float]) -> None:
    found = blocks(name)
    assert found
    assert all(one == gate for one in found)


@pytest.mark.full
def test_a_gate_of_another_kind_is_computed_as_it_is() -> None:
    """Gemma 4's is a GELU."""
    assert blocks("gemma4_text-experts") == []


@pytest.mark.parametrize(
    ("name", "storage", "way"),
    grouped(
        [
            ("mixtral-base", "int4", "native"),
            ("mixtral-base", "int8", "native"),
            ("mixtral-base", "w8a8", "own_tokens:sizes"),
            ("gpt_oss-base", "int4", "native"),
            ("mixtral-base", "fp32", "own_tokens:float32"),
            ("qwen3_moe-base", "int8", "own_tokens:sizes"),
            ("qwen3_moe-base", "w8a8", "own_tokens:sizes"),
        ]
    ),
)
@pytest.mark.sampled(3)
def test_the_computation_of_blocks_is_reported(name: str, storage: str, way: str) -> None:
    lowered = parity.awkward(name).lower(storage)
    assert set(lowered.ways["experts"]) == {way}
    ops = Counter(node.op_type for node in lowered.model.graph)
    count = lowered.ways["experts"][way]
    assert ops["QMoE"] == (count if way == "native" else 0)
    assert ops["Experts"] == ops["InterleavedExperts"] == 0
    stacks = [slot for slot in lowered.slots if len(sources_of(slot.expression)) > 1]
    if way == "native" and name == "mixtral-base":
        assert len(stacks) == 2 * count


@pytest.mark.parametrize(
    ("name", "storage"),
    grouped(
        [
            ("mixtral-base", "fp32"),
            ("gpt_oss-base", "fp32"),  # matrices stored input-major
            ("gemma4_text-experts", "int4"),
            ("dbrx-base", "int4"),  # matrices one below the other
            ("longcat_flash-base", "int4"),  # a stack with more matrices than are multiplied by
            ("llama4_text-base", "fp32"),
            ("jetmoe-base", "int4"),
        ]
    ),
)
@pytest.mark.sampled(6)
def test_each_expert_multiplies_its_own_tokens_by_a_matrix_of_its_own(
    name: str, storage: str
) -> None:
    lowered = parity.subject(name).lower(storage)
    assert all(way.startswith(ROUTED) for way in lowered.ways["experts"])
    nodes = list(lowered.model.graph)
    assert not any(experts_pass.is_routed_product(node) for node in nodes)
    products = [node for node in nodes if "Split" in [maker(value) for value in node.inputs]]
    products = [node for node in products if node.op_type in ("FusedMatMul", "MatMulNBits")]
    matrices = [node.inputs[1] for node in products]
    assert len(products) == len(set(matrices))
    assert len(products) >= 2 * 4 * sum(
        lowered.ways["experts"].values()
    )  # at least four experts a block
    assert all(value is not None and value.is_initializer() for value in matrices)


def maker(value: ir.Value | None) -> str:
    node = None if value is None else value.producer()
    return "" if node is None else node.op_type


def test_matrices_that_are_not_stored_as_they_are_used_stay_one_product_for_all_tokens() -> None:
    x, index, stack = (ir.val(name) for name in ("x", "index", "stack"))
    transposed = ir.node("Transpose", [stack], {"perm": [2, 1, 0]})
    product = ir.node("RoutedLinear", [x, index, transposed.outputs[0]], domain=domains.SEMANTIC)
    stack.shape = ir.Shape([2, 4, 6])
    graph = ir.Graph([x, index, stack], product.outputs, nodes=[transposed, product])
    ways = experts.lower(graph, {stack: "stack"}, {}, None)
    assert ways == {"all_tokens:not_stored": 1}
    assert list(graph) == [transposed, product]


def routed(count: int, *, transposed: bool) -> onnxruntime.InferenceSession:
    """Open one product of routed tokens as it is lowered, with the stack for an input."""
    stored = [count, 4, 6] if transposed else [count, 6, 4]
    kinds = (ir.DataType.FLOAT, ["tokens", None, 4]), (ir.DataType.INT64, ["tokens", "k"])
    x, index, stack = (
        ir.val(name, *kind)
        for name, kind in zip(
            ("x", "index", "stack"), (*kinds, (ir.DataType.FLOAT, stored)), strict=True
        )
    )
    nodes = [ir.node("Transpose", [stack], {"perm": [0, 2, 1]})] if transposed else []
    matrices = nodes[0].outputs[0] if transposed else stack
    nodes.append(ir.node("RoutedLinear", [x, index, matrices], domain=domains.SEMANTIC))
    (made,) = nodes[-1].outputs
    made.name, made.type = "made", ir.TensorType(ir.DataType.FLOAT)
    imports = {"": domains.OPSET, domains.SEMANTIC: 1}
    graph = ir.Graph([x, index, stack], [made], nodes=nodes, opset_imports=imports, name="one")
    assert routing.lower(graph, {stack}) == set()
    linear = [function for function in semantic.functions() if function.name == "Linear"]
    model = ir.Model(graph, ir_version=10, functions=linear)
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "index",
    [
        [[0, 1], [0, 2]],
        [[2, 1]],  # one token, and an expert that nobody chose
        [[1], [1], [1]],
        [[3, 1], [2, 4], [4, 3]],  # experts that there are not
        [[3, 4]],  # nobody chose any
    ],
)
def test_a_token_meets_the_matrices_of_its_own_experts(
    index: list[list[int]], transposed: bool
) -> None:
    random, count = np.random.default_rng(0), 3
    chosen = np.array(index)
    stack = random.standard_normal((count, 6, 4)).astype(np.float32)
    stored = stack.swapaxes(1, 2).copy() if transposed else stack
    session = routed(count, transposed=transposed)
    for rows in (1, chosen.shape[1]):  # one for all of a token's experts, or one for each
        x = random.standard_normal((len(chosen), rows, 4)).astype(np.float32)
        (made,) = session.run(None, {"x": x, "index": chosen, "stack": stored})
        expected = np.zeros((*chosen.shape, 6))
        for token, place in np.ndindex(chosen.shape):
            if chosen[token, place] < count:
                expected[token, place] = stack[chosen[token, place]] @ x[token, place % rows]
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
