# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts: which become one op, and which op becomes one kernel."""

from collections import Counter
from typing import Any

import parity
import pytest

from qeff_zoo.passes import experts as experts_pass
from qeff_zoo.weights.expressions import sources_of

ROUTED = "each expert on its own tokens, since "


def grouped(cases: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.xdist_group(case[0])) for case in cases]


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
def test_a_gate_is_found_by_trying_it(name: str, gate: dict[str, float]) -> None:
    found = blocks(name)
    assert found
    assert all(one == gate for one in found)


def test_a_gate_of_another_kind_is_computed_as_it_is() -> None:
    """Gemma 4's is a GELU."""
    assert blocks("gemma4_text-experts") == []


@pytest.mark.parametrize(
    ("name", "storage", "way"),
    grouped(
        [
            ("mixtral-base", "int4", "native"),
            ("mixtral-base", "int8", "native"),
            ("gpt_oss-base", "int4", "native"),
            ("mixtral-base", "fp32", f"{ROUTED}the kernel has no float32 matrices"),
            ("qwen3_moe-base", "int4", f"{ROUTED}64 and 48 are no multiples of the blocks of 32"),
        ]
    ),
)
def test_how_blocks_are_computed_is_said(name: str, storage: str, way: str) -> None:
    lowered = parity.subject(name).lower(storage)
    assert set(lowered.experts) == {way}
    ops = Counter(node.op_type for node in lowered.model.graph)
    count = lowered.experts[way]
    assert ops["QMoE"] == (count if way == "native" else 0)
    assert ops["Experts"] == ops["InterleavedExperts"] == 0
    stacks = [slot for slot in lowered.slots if len(sources_of(slot.expression)) > 1]
    if way == "native" and name == "mixtral-base":
        assert len(stacks) == 2 * count
