# SPDX-License-Identifier: Apache-2.0
"""Attention for ONNX Runtime: which become one kernel, with which rotary embedding, and which keep their bodies.

That all of them answer as Hugging Face does is tested over every recipe in `test_recipes`.
"""

from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import parity
import pytest
import torch
from onnx_ir.passes import common as onnx_passes
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from qeff_zoo.graph.numerics import FLOAT32
from qeff_zoo.targets.ort import attention, lowering
from qeff_zoo.weights.storage import Storage

ROTARY = "native:rotary"
NATIVE = "native"


def natives(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def test_a_llama_rotates_its_heads_in_the_kernel() -> None:
    lowered = parity.subject("llama-base").lower("fp32")
    kinds = Counter(node.op_type for node in lowered.model.graph)
    assert lowered.ways["attention"] == {ROTARY: 4}
    assert kinds["GroupQueryAttention"] == 4
    gone = ("Cos", "Sin", "Transpose", "Neg", "CacheWrite", "Attention", "CausalMask", "ScatterND")
    assert [kinds[name] for name in gone] == [0] * len(gone)


def test_tables_are_those_of_transformers_and_there_once() -> None:
    subject = parity.subject("llama-base")
    model = subject.lower("fp32").model
    tables = {id(value) for node in natives(model) for value in node.inputs[7:9]}
    assert len(tables) == 2
    cos, sin = (value.const_value.numpy() for value in natives(model)[0].inputs[7:9])  # type: ignore[union-attr]
    embedding = LlamaRotaryEmbedding(subject.hf.config)
    expected = embedding(torch.zeros(1), torch.arange(parity.CTX_LEN)[None])
    for got, want in zip((cos, sin), expected, strict=True):
        np.testing.assert_allclose(got, want[0, :, : got.shape[1]].numpy(), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("apertus-base", {ROTARY: 4}),  # normalized before they are rotated
        ("cohere-base", {ROTARY: 4}),  # neighbours are pairs
        ("gpt2-base", {NATIVE: 4}),  # learned positions
        ("smollm3-window", {ROTARY: 2, NATIVE: 2}),  # layers without positions
        ("cohere2-base", {ROTARY: 2, NATIVE: 2}),
        ("llama4_text-base", {NATIVE: 2, "portable:mask": 2}),
        ("gpt_oss-base", {ROTARY: 4}),  # two that keep a window only, with sinks
        ("gemma3_text-base", {ROTARY: 4}),
    ],
)
@pytest.mark.sampled(3)
def test_attentions_become_what_they_can(name: str, ways: dict[str, int]) -> None:
    assert parity.subject(name).lower("fp32").ways["attention"] == ways


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("llama-base", {NATIVE: 4}),  # heads of 24: turned outside
        ("cohere2-base", {"portable:head_size": 4}),
    ],
)
@pytest.mark.sampled(2)
def test_attentions_of_awkward_sizes_do_not(name: str, ways: dict[str, int]) -> None:
    assert parity.awkward(name).lower("fp32").ways["attention"] == ways


@pytest.mark.parametrize(
    ("name", "attribute", "expected"),
    [
        ("mistral-base", "local_window_size", {7}),
        ("gemma2-base", "local_window_size", {-1, 7}),
        ("gemma2-base", "softcap", {2.0}),
        ("gemma2-base", "sliding_window_cache", {0}),
        ("gemma3_text-base", "sliding_window_cache", {0, 1}),
        ("cohere-base", "rotary_interleaved", {1}),
        ("apertus-base", "rotary_interleaved", {0}),
    ],
)
def test_special_attributes_reach_the_kernel(name: str, attribute: str, expected: set[Any]) -> None:
    model = parity.subject(name).lower("fp32").model
    assert {node.attributes[attribute].value for node in natives(model)} == expected


def test_a_windows_cache_has_room_beyond_the_window_but_not_beyond_the_context() -> None:
    subject = parity.subject("gemma3_text-base")
    window = subject.hf.config.sliding_window
    for ctx_len, rows in ((40, window + parity.SPARE), (window + 1, window + 1), (3, 3)):
        model = subject.graph()
        with mock.patch.object(attention, "_SPARE", parity.SPARE):
            graph = lowering.lower(model, subject.bindings, Storage(FLOAT32), ctx_len).model.graph
        shapes = {
            value.shape[2]  # type: ignore[index]
            for value in (*graph.inputs, *graph.outputs)
            if value.name and value.name.startswith("past_")
        }
        assert shapes == {"ctx_len", rows}
        shown = {node.attributes["local_window_size"].value for node in natives(model)}
        assert shown == {-1, min(window, ctx_len)}


def test_padding_costs_a_window_nothing() -> None:
    """Columns that are padding in all rows change no bit: of a window's cache they would push tokens out."""
    session = parity.subject("gemma3_text-base").lowered("fp32", parity.PLAIN, 1)
    tokens = np.arange(1, 12)[None]
    found = []
    for padding in (0, 5):
        steps = parity.decoder_steps(session, 1)
        ids = np.pad(tokens, ((0, 0), (0, padding)))
        positions = np.pad(np.arange(11)[None], ((0, 0), (0, padding)), constant_values=-1)
        feeds = {"input_ids": ids, "position_ids": positions, **steps.states}
        found.append(parity._run_in_place(session, feeds))
    for name in ("logits", *(f"{name}_RetainedState" for name in steps.states)):
        np.testing.assert_array_equal(found[0][name], found[1][name], name)


def test_an_angle_that_is_not_a_matter_of_the_position_stays_outside() -> None:
    """Every token is rotated by the newest one's angle too: in other company it would be another."""
    subject = parity.subject("llama-base")
    model = subject.graph()
    cos = next(node for node in model.graph if node.op_type == "Cos")
    newest = ir.node("ReduceMax", [cos.inputs[0]], {"keepdims": 1})
    added = ir.node("Add", [cos.inputs[0], newest.outputs[0]])
    model.graph.insert_before(cos, [newest, added])
    cos.replace_input_with(0, added.outputs[0])
    lowered = lowering.lower(model, subject.bindings, Storage(FLOAT32), parity.CTX_LEN)
    assert lowered.ways["attention"] == {NATIVE: 4}
    assert Counter(node.op_type for node in lowered.model.graph)["Cos"] == 1


_FULL = """
    <ir_version: 10, opset_import: ["" : 18, "qeff_zoo" : 1]>
    full (float[batch,seq,24] query, float{keys} key, float{values} value) => (float[batch,seq,heads,size] y) {{
        shape = Constant <value_ints = [0, 0, 3, 8]> ()
        query_by_token = Reshape (query, shape)
        query_by_head = Transpose <perm = [0, 2, 1, 3]> (query_by_token)
        ones = Constant <value_ints = [1, 1, 1, 1]> ()
        zeros = ConstantOfShape <value = float[1] {{{hidden}}}> (ones)
        like = CastLike (zeros, query)
        mask = Expand (like, ones)
        {more}
        y = qeff_zoo.Attention <scale = 0.3, num_heads = 3> (query_by_head, k, v, mask)
    }}"""
_BY_TOKEN = """key_shape = Constant <value_ints = [0, 0, -1, 8]> ()
        key_by_token = Reshape (key, key_shape)
        k = Transpose <perm = [0, 2, 1, 3]> (key_by_token)
        value_shape = Constant <value_ints = [0, 0, 3, -1]> ()
        value_by_token = Reshape (value, value_shape)
        v = Transpose <perm = [0, 2, 1, 3]> (value_by_token)"""
_BY_HEAD = """k = Identity (key)
        v = Identity (value)"""


def full(keys: str, values: str, *, hidden: float = 0.0) -> ir.Model:
    """An attention without a mask, whose keys and values lie by token or by head."""
    more = _BY_HEAD if keys.startswith("[batch,3") else _BY_TOKEN
    text = _FULL.format(keys=keys, values=values, more=more, hidden=hidden)
    return ir.from_onnx_text(text)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("[batch,length,24]", "[batch,length,24]"),
        ("[batch,length,24]", "[batch,length,15]"),  # values of another size
        ("[batch,3,length,8]", "[batch,3,length,8]"),  # states: of a sound that was read before
    ],
)
@pytest.mark.parametrize(("batch", "seq", "length"), [(1, 9, 9), (3, 1, 40), (2, 5, 300)])
def test_all_that_see_all_are_one_kernel(
    keys: str, values: str, batch: int, seq: int, length: int
) -> None:
    model = full(keys, values)
    assert attention.lower(model.graph, 0) == {"native:full": 1}
    onnx_passes.RemoveUnusedNodesPass()(model)
    model.opset_imports["com.microsoft"] = 1
    assert "Attention" not in {node.op_type for node in model.graph}
    random = np.random.default_rng(0)
    given = {}
    for value in model.graph.inputs:
        named = {"batch": batch, "seq": seq, "length": length}
        sizes = [named.get(str(size), size) for size in value.shape]  # type: ignore[union-attr]
        given[value.name] = random.normal(size=sizes).astype(np.float32)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    (got,) = session.run(None, given)
    query, key, value = (
        entry if entry.ndim == 4 else entry.reshape(*entry.shape[:2], 3, -1).transpose(0, 2, 1, 3)
        for entry in given.values()
    )
    scores = np.exp(0.3 * query.astype(float) @ key.transpose(0, 1, 3, 2))
    expected = (scores / scores.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("keys", "hidden", "way"),
    [
        ("[batch,length,8]", 0.0, "portable:full"),  # one head for all queries
        ("[batch,length,width]", 0.0, "portable:full"),  # of who knows how many
        ("[batch,length,24]", -1e9, "portable:mask"),
    ],
)
def test_groups_and_other_masks_keep_their_bodies(keys: str, hidden: float, way: str) -> None:
    model = full(keys, "[batch,length,24]", hidden=hidden)
    assert attention.lower(model.graph, 0) == {way: 1}
    assert "Attention" in {node.op_type for node in model.graph}
