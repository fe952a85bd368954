# SPDX-License-Identifier: Apache-2.0
"""Graphs for Cloud AI 100: with bodies that poison what the device skips, they compute what Hugging Face does.

The compiler takes the same graph with its own bodies; no other difference is between what is compared here and what is
compiled.
"""

import itertools
import re
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import parity
import pytest
from parity import Array, Steps, Subject
from test_encoders import LENGTHS, TRACED, embeddings, texts_for
from test_recipes import grouped, traced

from qeff_zoo.numerics import FLOAT32
from qeff_zoo.passes.layers import layers_of
from qeff_zoo.states import states_of
from qeff_zoo.targets import Lowered
from qeff_zoo.targets.qaic import lowering, ops
from qeff_zoo.weights import external_data
from qeff_zoo.weights.writing import plan_file, write

MEAN = (("pooling", "mean"), ("normalize", False))


def lower(subject: Subject, variant: parity.Variant, ctx_len: int = parity.CTX_LEN) -> Lowered:
    graph = SimpleNamespace(model=subject.graph(variant), bindings=subject.bindings)
    program = SimpleNamespace(shape=SimpleNamespace(ctx_len=ctx_len), weights=FLOAT32)
    return lowering.lower(graph, program)


@cache
def lowered(name: str, variant: parity.Variant = parity.PLAIN) -> Lowered:
    return lower(parity.subject(name), variant)


@cache
def session(name: str, variant: parity.Variant = parity.PLAIN) -> onnxruntime.InferenceSession:
    """Open a lowered graph with host bodies."""
    subject, made = parity.subject(name), lowered(name, variant)
    folder = Path(tempfile.mkdtemp(dir=subject.folder))
    layout = plan_file(made.slots, subject.checkpoint.tensors)
    write(layout, subject.checkpoint, folder / external_data.WEIGHTS)
    model = ops.with_host_bodies(made.model)
    external_data.place(model, layout)
    ir.save(model, folder / "graph.onnx")
    return parity.open_session(folder / "graph.onnx")


def junk(shape: list[int]) -> Array:
    """Fill a state with what no earlier request would leave: large numbers and NaN."""
    return np.random.default_rng(2).choice([1e30, -1e30, 3, np.nan], shape).astype(np.float32)


def steps(name: str, variant: parity.Variant, slots: int, ctx_len: int) -> Steps:
    """Generate as the device is called: an idle row has -1 in every input."""
    opened = session(name, variant)
    batched = "continuous_batching" in dict(variant)
    sizes = {"ctx_len": ctx_len, "full_batch_size": slots, "batch_size": slots}
    names = {value.name for value in opened.get_inputs()}
    states = {}
    for state in opened.states:
        # Without slots, a call that leaves a row out computes its recurrence all the same, to what it was if that is
        # a finite number.
        fill = junk if batched or state.kind != "recurrent" else parity.garbage
        states[state.name] = fill([sizes.get(size, size) for size in state.axes])

    def call(
        input_ids: Array, position_ids: Array, batch_index: Array | None, past: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        idle = position_ids.max(1, keepdims=True) < 0
        feeds = {"input_ids": np.where(idle, -1, input_ids), "position_ids": position_ids}
        rows = slots if batched else len(input_ids)
        feeds |= {name: state[:rows] for name, state in past.items()}
        if batch_index is not None:
            feeds["batch_index"] = np.where(idle, -1, batch_index)
        if "comp_ctx_lengths" in names:
            feeds["comp_ctx_lengths"] = parity.least_context(position_ids)
        found = dict(
            zip([out.name for out in opened.get_outputs()], opened.run(None, feeds), strict=True)
        )
        present = {
            name: np.concatenate([found[f"{name}_RetainedState"], past[name][rows:]])
            for name in past
        }
        assert np.isfinite(found["logits"][slice(None) if batched else ~idle[:, 0]]).all()
        return found["logits"], present

    return Steps(call, states)


@pytest.mark.parametrize("scenario", parity.SCENARIOS)
@pytest.mark.parametrize("name", grouped(traced()))
def test_decoder_agrees_with_hugging_face(name: str, scenario: str) -> None:
    variant = parity.CONTINUOUS if scenario == "slots" else parity.PLAIN
    assert_close(name, scenario, variant)


def assert_close(name: str, scenario: str, variant: parity.Variant) -> None:
    ids, expected, noise = parity.expected_of(parity.subject(name))

    def start(slots: int = parity.ROWS, ctx_len: int = parity.CTX_LEN) -> Steps:
        return steps(name, variant, slots, ctx_len)

    away = parity.distance(parity.SCENARIOS[scenario], start, ids, expected)
    assert away <= parity.TOLERANCE["fp32"] * noise
