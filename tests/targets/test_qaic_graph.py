# SPDX-License-Identifier: Apache-2.0
"""Graphs for Cloud AI 100: with bodies that poison what the device skips, they compute what Hugging Face does.

The compiler takes the same graph with its own bodies; no other difference is between what is compared here and what is
compiled.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import gptq_checkpoints
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import parity
import pytest
from fixtures_encoders import LENGTHS, TRACED, embeddings, texts_for
from fixtures_full_size import without_weights
from fixtures_qaic_graph import SHAPE, junk, open_host, program
from fixtures_recipes import LATENT, grouped
from gptq_checkpoints import READ
from parity import COMPUTE_CONTEXT, CONTINUOUS, EXPANDED, PLAIN, Array, Steps, Subject, Variant

from qeff_zoo.checkpoint.encoded import Integers
from qeff_zoo.errors import CompileError
from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import FLOAT16, FLOAT32, Format
from qeff_zoo.graph.passes.layers import layers_of
from qeff_zoo.graph.semantic.domains import OPSET
from qeff_zoo.graph.states import mark_tokens, states_of
from qeff_zoo.recipe import Shape
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.qaic import conflicts, features, lowering, ops, placing
from qeff_zoo.targets.qaic.blocking import Blocking
from qeff_zoo.targets.qaic.lowering_report import WAYS

MEAN = (("pooling", "mean"), ("normalize", False))
#: Those whose graphs are compared: of every kind of state and every transform one or more, see `parity.is_traced`.
DECODERS = parity.names_of("text-generation") if parity.EVERY else parity.CROSSED
#: What no compiler for a device has: shapes that depend on data, sequences, control flow but for a recurrence's Scan.
REFUSED = {
    *("If", "Loop", "NonZero", "Unique", "Compress", "NonMaxSuppression"),
    *("SequenceAt", "SequenceConstruct", "SplitToSequence", "ConcatFromSequence", "Optional"),
}


@cache
def lowered(
    name: str,
    variant: Variant = PLAIN,
    weights: Format = FLOAT32,
    shape: Shape = SHAPE,
) -> Lowered:
    subject = parity.subject(name)
    graph = SimpleNamespace(model=subject.graph(variant), bindings=subject.bindings, encoded={})
    return lowering.lower(graph, program(weights, shape))


@cache
def session(name: str, variant: Variant = PLAIN) -> onnxruntime.InferenceSession:
    """Open a lowered graph with host bodies."""
    subject, made = parity.subject(name), lowered(name, variant)
    return open_host(subject, made.slots, ops.with_host_bodies(made.model))


def steps(name: str, variant: Variant, slots: int, ctx_len: int) -> Steps:
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


# --- as Hugging Face -----------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", parity.SCENARIOS)
@pytest.mark.parametrize("name", grouped(DECODERS))
@pytest.mark.sampled(16)
def test_decoder_agrees_with_hugging_face(name: str, scenario: str) -> None:
    assert_close(name, scenario, CONTINUOUS if scenario == "slots" else PLAIN)


def assert_close(name: str, scenario: str, variant: Variant) -> None:
    ids, expected, noise = parity.expected_of(parity.subject(name))

    def start(slots: int = parity.ROWS, ctx_len: int = parity.CTX_LEN) -> Steps:
        return steps(name, variant, slots, ctx_len)

    away = parity.distance(parity.SCENARIOS[scenario], start, ids, expected)
    assert away <= parity.TOLERANCE["fp32"] * noise


@pytest.mark.parametrize("name", grouped(["llama-base", "gemma3_text-base"]))
def test_compute_contexts_agree_with_hugging_face(name: str) -> None:
    assert_close(name, "slots", (*CONTINUOUS, *COMPUTE_CONTEXT))
    assert_close(name, "chunked", COMPUTE_CONTEXT)


@pytest.mark.parametrize("name", LATENT[:1])
@pytest.mark.full
def test_expanded_latents_agree_with_hugging_face(name: str) -> None:
    assert_close(name, "slots", (*CONTINUOUS, *EXPANDED))


@pytest.mark.parametrize("name", grouped(TRACED))
@pytest.mark.sampled(4)
def test_encoder_agrees_with_hugging_face(name: str) -> None:
    encoder, noises, distances = parity.subject(name), [], []
    for lengths in [*LENGTHS, (parity.positions(encoder), 9)]:
        ids, mask = texts_for(encoder, lengths)
        expected = embeddings(encoder.hf, ids, lengths, "mean", norm=False)
        wide = embeddings(encoder.hf64, ids, lengths, "mean", norm=False)
        (got,) = session(name, MEAN).run(None, {"input_ids": ids, "attention_mask": mask})
        noises.append(np.abs(expected - wide).max())
        distances.append(np.abs(got - expected).max())
    assert max(distances) <= parity.TOLERANCE["fp32"] * max(noises)


def test_float16_is_what_is_left_of_the_weights() -> None:
    subject, made = parity.subject("llama-base"), lowered("llama-base", CONTINUOUS, FLOAT16)
    assert {slot.format for slot in made.slots if "proj" in slot.name} == {FLOAT16}
    assert_names(subject, made.model)
    rounded = copy.deepcopy(subject.hf)
    for weight in rounded.parameters():
        if weight.dim() > 1:
            weight.data = weight.half().float()
    ids = parity.tokens(rows=1)
    opened = open_host(subject, made.slots, ops.with_host_bodies(made.model))
    states = {state.name: junk([2, *state.axes[1:2], 40, state.axes[3]]) for state in opened.states}
    feeds = {"input_ids": ids, "position_ids": np.arange(ids.shape[1])[None]}
    (logits,) = opened.run(["logits"], {**feeds, "batch_index": np.array([[1]]), **states})
    expected, wide = (
        parity.reference(model, ids) for model in (rounded, parity.in_float64(rounded))
    )
    noise = np.abs(expected - wide).max()
    assert np.abs(logits[:, 0] - expected[:, -1]).max() <= parity.TOLERANCE["fp32"] * noise


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ({"bits": 4, "group": 32}, "kept"),
        ({"bits": 4, "group": 16, "zeros": READ}, "kept"),
        ({"bits": 8, "group": 32}, "decoded"),
        ({"bits": 4, "group": 32, "offsets": READ}, "decoded"),
        ({"bits": 4, "group": 32, "order": READ}, "decoded"),
        ({"bits": 4, "group": 24}, "decoded"),
    ],
)
def test_integers_stay_that_the_compiler_takes(kind: dict[str, Any], way: str) -> None:
    subject = parity.subject("llama-base")
    integers = Integers(integers=READ, scales=READ, **kind)
    encoded = gptq_checkpoints.all_of(subject.checkpoint.tensors, integers)
    graph = SimpleNamespace(
        model=subject.graph(CONTINUOUS), bindings=subject.bindings, encoded=encoded
    )
    made = lowering.lower(graph, program(FLOAT16))
    assert made.ways["weights"] == {way: len(encoded)}
    products = [node for node in made.model.graph if node.op_type == "MatMulNBits"]
    assert len(products) == len(made.numerics.matrices) == len(encoded) * (way == "kept")
    assert all(value.dtype is not None for node in made.model.graph for value in node.outputs)
    assert_names(subject, made.model)
    if way == "kept":
        onnx.checker.check_model(without_weights(made.model), full_check=True)
        assert "/model/layers.1/mlp/up_proj/MatMulNBits" in {node.name for node in products}


@pytest.mark.parametrize("name", grouped(["llama-base", "gemma3_text-base", "mamba-base"]))
@pytest.mark.sampled(2)
def test_missing_zeros_for_skipped_reads_change_the_logits(name: str) -> None:
    """Without the zeros where nothing was read, all that is skipped reaches the logits."""
    made = lowered(name, CONTINUOUS)
    model = ops.with_host_bodies(made.model)
    for node in list(model.graph):
        if node.op_type.startswith("CtxGather"):
            (zeroed,) = [use.node for use in node.outputs[0].uses()]
            ir.convenience.replace_all_uses_with(zeroed.outputs[0], node.outputs[0])
    opened = open_host(parity.subject(name), made.slots, model)
    states = {
        state.name: junk([3 if isinstance(size, str) else size for size in state.axes])
        for state in opened.states
    }
    feeds = {"input_ids": np.array([[5]]), "position_ids": np.array([[0]])}
    (logits,) = opened.run(["logits"], {**feeds, "batch_index": np.array([[1]]), **states})
    assert np.isnan(logits).any()


# --- as the compiler takes it --------------------------------------------------------------------


@pytest.mark.parametrize("name", [parity.STATES["growing"], parity.STATES["recurrent"]])
def test_transferred_states_have_the_names_of_vllm_qaic(name: str) -> None:
    plain, apart = (
        lowered(name, shape=replace(SHAPE, decode_only=apart)).model.graph
        for apart in (False, True)
    )
    names = [state.name for state in states_of(plain.inputs)]
    found = states_of(apart.inputs)
    assert [state.name for state in found] == [f"{key}_vllmKvCache" for key in names]
    outputs = {value.name for value in apart.outputs}
    assert outputs == {"logits", *(f"{key}_vllmKvCache_RetainedState" for key in names)}


FORMS = [
    *((name, variant) for name in DECODERS for variant in (PLAIN, CONTINUOUS)),
    *((name, MEAN) for name in TRACED),
]


@pytest.mark.parametrize(
    ("name", "variant"),
    [pytest.param(*form, marks=pytest.mark.together(form[0])) for form in FORMS],
)
@pytest.mark.sampled(2)
def test_the_graph_is_one_that_the_compiler_takes(name: str, variant: Variant) -> None:
    subject, made = parity.subject(name), lowered(name, variant)
    model = made.model
    onnx.checker.check_model(without_weights(model), full_check=True)
    custom = {(op.domain, op.name): op for op in ops.ALL}
    assert {identifier[:2] for identifier in model.functions} <= set(custom)
    for node in model.graph.all_nodes():
        assert node.op_type not in REFUSED
        assert node.domain == "" or len(node.inputs) == len(
            custom[node.domain, node.op_type].inputs
        )
    assert_states(made)
    assert_constants(model)
    assert_weights(made)
    assert {code for counts in made.ways.values() for code in counts} <= set(WAYS)
    scans = sum(node.op_type == "Scan" for node in model.graph)
    assert made.ways.get("recurrences", {}).get("scan", 0) == scans
    assert_names(subject, model)


def assert_states(made: Lowered) -> None:
    """Each state has an output of its own; what has rows is written by one scatter, into that state."""
    graph = made.model.graph
    outputs = {value.name: value for value in graph.outputs}
    slots = any(value.name == "batch_index" for value in graph.inputs)
    inputs = {value.name: value for value in graph.inputs}
    for state in states_of(graph.inputs):
        past, present = inputs[state.name], outputs[state.output]
        assert (present.dtype, present.shape) == (past.dtype, past.shape)
        scatters = [use.node for use in past.uses() if use.node.op_type.startswith("CtxScatter")]
        if (slots or state.kind != "recurrent") and len(state.axes) <= 4:
            assert scatters == [present.producer()]
            assert scatters[0].inputs[0] is past


def assert_constants(model: ir.Model) -> None:
    """Numbers are such as float16 and int32 hold, but for infinities."""
    stored = [value.const_value for value in model.graph.initializers.values()]
    arrays = [one.numpy() for one in stored if one and not isinstance(one, ir.ExternalTensor)]
    for node in model.graph.all_nodes():
        if node.op_type in ("Constant", "ConstantOfShape"):
            arrays += [tensor_of(attribute) for attribute in node.attributes.values()]
    for array in arrays:
        if array.dtype == np.int64:
            assert (np.abs(array) <= 2**31).all()
        elif array.dtype.kind == "f":
            assert (np.abs(array[np.isfinite(array)]) <= 65504).all()


def tensor_of(attribute: ir.Attr) -> Array:
    value = attribute.value
    return value.numpy() if isinstance(value, ir.TensorProtocol) else np.asarray(value)


def assert_weights(made: Lowered) -> None:
    """Weights lie as they are read: constants (inputs, outputs) where they are multiplied by."""
    for node in made.model.graph:
        fixed = all(value and ir.convenience.get_const_tensor(value) for value in node.inputs[1:])
        if node.op_type in ("Transpose", "Reshape", "Slice", "Shape") and fixed:
            assert not external_data.is_placeholder(node.inputs[0])
    read = external_data.slots_read(made.model.graph) - {""}
    assert {slot.name for slot in made.slots} == read


def assert_names(subject: Subject, model: ir.Model) -> None:
    """Every node has a name of its own; of a decoder each layer has nodes, and their names tell it."""
    named = layers_of(model)
    assert len({name for _, name in named}) == len(named) == len(list(model.graph))
    assert all(f".{layer}/" in name for layer, name in named if layer is not None)
    if subject.recipe.task == "text-generation":
        found = (re.search(r"\.(\d+)\.", weight) for weight in subject.hf.state_dict())
        layers = {int(match[1]) for match in found if match}
        assert {layer for layer, _ in named} == {None, *layers}


# --- custom ops ----------------------------------------------------------------------------------

F, B, H, C, S, D = 4, 3, 2, 7, 5, 6  # slots, batch, heads, rows, tokens, head size
ROWS = np.array([[3, 0, 6, 1, 2], [4, 5, 6, 0, 1], [6, 5, 4, 3, 2]])
SLOTS = np.array([[2], [0], [3]])


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def feeds_of(op: ops.CustomOp, rows: Array) -> dict[str, Array]:
    """Give each input of an op what it is made for; rows are written or read."""
    heads = [] if op.rows == 1 else [H]
    first = F if "batch_index" in op.inputs else B
    every = {
        "data": normal(first, *heads, C, D),
        "batch_index": SLOTS,
        "position_ids": rows,
        "ctx_indices": rows[:, None] if heads else rows,
        "comp_ctx_len": np.array(rows.shape[1]),
        "updates": normal(B, *heads, S, D),
    }
    return {name: every[name] for name in op.inputs}


def run_op(op: ops.CustomOp, feeds: Mapping[str, Array], *, host: bool, **attributes: Any) -> Array:
    values = [
        ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape([None] * array.ndim),
        )
        for name, array in feeds.items()
    ]
    node = ir.node(op.name, values, attributes, domain=op.domain)
    (output,) = node.outputs
    output.name, output.type = "y", ir.TensorType(ir.DataType.FLOAT)
    output.shape = values[0].shape
    graph = ir.Graph(values, [output], nodes=[node], opset_imports={"": OPSET}, name="one")
    model = ir.Model(graph, ir_version=10)
    ops.attach(model)
    proto = ir.to_proto(ops.with_host_bodies(model) if host else model)
    onnx.checker.check_model(proto, full_check=True)
    opened = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return opened.run(None, dict(feeds))[0]


def expected_of(op: ops.CustomOp, feeds: Mapping[str, Array]) -> Array:
    """Write or read row by row."""
    found = feeds["data"].copy()
    rows = ROWS
    slots = feeds["batch_index"][:, 0] if "batch_index" in feeds else np.arange(B)
    if op.gathers:
        return np.stack([found[slot][..., rows[b], :] for b, slot in enumerate(slots)])
    for b, slot in enumerate(slots):
        found[slot][..., rows[b], :] = feeds["updates"][b]
    return found


INDEXED = [pytest.param(op, id=op.name) for op in ops.ALL if op.rows is not None]


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("op", INDEXED)
def test_rows_go_where_they_belong(op: ops.CustomOp, host: bool) -> None:
    feeds = feeds_of(op, ROWS)
    np.testing.assert_array_equal(run_op(op, feeds, host=host), expected_of(op, feeds))


@pytest.mark.parametrize("beyond", [ops.SKIP, C, C + 9])
@pytest.mark.parametrize("op", INDEXED)
def test_skipped_positions_are_not_written_and_read_as_nan(op: ops.CustomOp, beyond: int) -> None:
    skipped = np.zeros_like(ROWS, bool)
    skipped[0, 1:3] = skipped[1] = True
    feeds = feeds_of(op, np.where(skipped, beyond, ROWS))
    if "batch_index" in feeds:
        feeds["batch_index"] = np.where(skipped.all(1, keepdims=True), -1, SLOTS)
    whole = feeds_of(op, ROWS)
    if op.gathers:
        hidden = skipped[:, :, None] if op.rows == 1 else skipped[:, None, :, None]
        wanted = np.where(hidden, np.nan, expected_of(op, whole))
    else:
        wanted = whole["data"].copy()
        slots = SLOTS[:, 0] if "batch_index" in feeds else np.arange(B)
        for b, slot in enumerate(slots):
            kept = ~skipped[b]
            wanted[slot][..., ROWS[b][kept], :] = whole["updates"][b][..., kept, :]
    np.testing.assert_array_equal(run_op(op, feeds, host=True), wanted)


@pytest.mark.parametrize("op", INDEXED)
def test_a_row_of_minus_one_is_the_last_as_in_onnx(op: ops.CustomOp) -> None:
    """So that padding which was left at -1 shows."""
    feeds = feeds_of(op, np.where(ROWS == C - 1, -1, ROWS))
    whole = expected_of(op, feeds_of(op, ROWS))
    np.testing.assert_array_equal(run_op(op, feeds, host=True), whole)


@pytest.mark.parametrize("host", [False, True])
def test_rms_norm(host: bool) -> None:
    x, weight = normal(B, S, D), normal(D)
    wide = x.astype(np.float64)
    expected = weight * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
    feeds = {"hidden_states": x, "weight": weight}
    got = run_op(ops.RMS_NORM, feeds, host=host, epsilon=1e-3)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


# --- attention in blocks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("llama-base", {"kv": 3}),
        ("llama-base", {"kv": 5, "heads": 2}),
        ("gemma2-base", {"kv": 2, "heads": 1}),  # with a soft-cap, and windows
        ("gpt_oss-base", {"kv": 3, "heads": 2}),  # with sinks
    ],
    ids=str,
)
@pytest.mark.sampled(2)
def test_attention_in_blocks_agrees_with_hugging_face(
    name: str, blocks: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, made = parity.subject(name), in_blocks(name, CONTINUOUS, **blocks)
    assert made.ways["attention"]["blocked"] > 1
    assert not REFUSED & {node.op_type for node in made.model.graph}
    opened = open_host(subject, made.slots, ops.with_host_bodies(made.model))
    monkeypatch.setitem(globals(), "session", lambda *_: opened)
    assert_close(name, "slots", CONTINUOUS)


def in_blocks(name: str, variant: Variant, **blocks: int) -> Lowered:
    subject = parity.subject(name)
    graph = SimpleNamespace(model=subject.graph(variant), bindings=subject.bindings, encoded={})
    return lowering.lower(graph, program(FLOAT32), Blocking(**blocks))


@pytest.mark.full
def test_blocks_of_queries_agree_too_and_each_block_of_the_cache_is_gathered_by_itself() -> None:
    subject = parity.subject("llama-base")
    ids = parity.tokens(rows=1)
    feeds = {"input_ids": ids, "position_ids": np.arange(ids.shape[1])[None]}
    answers = []
    for blocks in ({}, {"q": 3}, {"kv": 4, "q": 2, "heads": 2}):
        made = in_blocks("llama-base", CONTINUOUS, **blocks)
        gathers = [node for node in made.model.graph if node.op_type == "CtxGatherCB"]
        parts = blocks.get("kv", 1) * blocks.get("q", 1) * (2 if "heads" in blocks else 1)
        states = states_of(made.model.graph.inputs)
        assert len(gathers) == len(states) * (parts if "kv" in blocks else 1)
        opened = open_host(subject, made.slots, ops.with_host_bodies(made.model))
        past = {state.name: junk([2, *state.axes[1:2], 40, state.axes[3]]) for state in states}
        found = opened.run(["logits"], {**feeds, "batch_index": np.array([[1]]), **past})
        answers.append(found[0][:, 0])
    expected = parity.reference(subject.hf, ids)[:, -1]
    for answer in answers:
        np.testing.assert_allclose(answer, expected, atol=1e-4)


def test_heads_that_cannot_be_cut_so_are_refused() -> None:
    with pytest.raises(CompileError, match="--head-block-size is 3, and an attention has 4 heads"):
        in_blocks("llama-base", CONTINUOUS, heads=3)


def test_a_model_without_attention_to_cut_is_refused() -> None:
    with pytest.raises(CompileError, match="no attention that can be cut"):
        in_blocks("mamba-base", CONTINUOUS, kv=2)


HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
BLOCKED_SHAPE = Shape(ctx_len=64, prefill_seq_len=8)


@pytest.mark.parametrize(
    ("options", "changes", "problem"),
    [
        ({"blocking_mode": "kv"}, {}, "--num-kv-blocks is None; expected both, or neither. Give"),
        ({"num_q_blocks": 2}, {}, "--blocking-mode is None, and --num-q-blocks is 2; .* Leave out"),
        ({"blocking_mode": "hq", "head_block_size": 2}, {}, "--num-q-blocks is None"),
        ({"blocking_mode": "kv", "num_kv_blocks": 65}, {}, "as few as 64 rows"),
        ({"blocking_mode": "q", "num_q_blocks": 2}, {}, "some calls have 1 token"),
        ({"blocking_mode": "q", "num_q_blocks": 9}, {"prefill_only": True}, "some calls have 8 token"),
        ({"blocking_mode": "q", "num_q_blocks": 8}, {"prefill_only": True}, None),
        (
            {"blocking_mode": "hqkv", "head_block_size": 2, "num_q_blocks": 2, "num_kv_blocks": 2},
            {"prefill_only": True},
            None,
        ),
        ({"blocking_mode": "h", "head_block_size": 3}, {}, "4 heads share a key/value head; expected"),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_choices_of_blocks_go_together(
    options: dict[str, Any], changes: dict[str, Any], problem: str | None
) -> None:
    found = " ".join(conflicts.of_blocks(HEADS, replace(BLOCKED_SHAPE, **changes), options))
    assert re.search(problem, found) if problem else not found


@pytest.mark.parametrize(
    "heads",
    [
        {"n_heads": 48, "attn_config": {"kv_n_heads": 8}},
        {"num_attention_heads": 232, "num_kv_heads": 8},
    ],
    ids=["dbrx", "falcon"],
)
def test_heads_in_blocks_have_key_value_heads_of_any_name(heads: dict[str, Any]) -> None:
    options = {"blocking_mode": "h", "head_block_size": 8}
    (found,) = conflicts.of_blocks(heads, BLOCKED_SHAPE, options)
    assert "heads share a key/value head; expected a multiple or a divisor" in found


@pytest.mark.parametrize("mode", ["kv", "h"])
def test_an_encoder_is_cut_by_heads_alone(mode: str) -> None:
    settings = {"kv": {"num_kv_blocks": 2}, "h": {"head_block_size": 2}}[mode]
    options = {"blocking_mode": mode, **settings}
    found = [*conflicts.of_blocks({**HEADS, "is_encoder_decoder": True}, BLOCKED_SHAPE, options)]
    assert len(found) == (mode == "kv")
    assert all("expected 'h' of such models" in one for one in found)


_MERGING = """
<ir_version: 8, opset_import: ["": 18]>
language (int64[batch_size, seq_len] input_ids, int64[batch_size, seq_len] image_index,
          float[image_rows, 2] image_embeds) => (int64[batch_size, seq_len] rows, float[batch_size, seq_len, 2] found)
{
  rows = Identity (image_index)
  zero = Constant <value_int = 0> ()
  places = Max (image_index, zero)
  found = Gather (image_embeds, places)
}
"""


@pytest.mark.parametrize("second", [7, 8])
def test_tokens_find_their_features_by_counting(second: int) -> None:
    """Of one token that has rows, and of two."""
    model = ir.from_proto(onnx.parser.parse_model(_MERGING))
    mark_tokens(model.graph.inputs[1], {7, second})
    placing.place(model.graph)
    assert [value.name for value in model.graph.inputs] == [
        "input_ids",
        "image_idx",
        "vision_embeds",
    ]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    kept = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    # The third row has no picture: what is like a placeholder there was written by the model.
    settings = {"input_ids": np.array([[7, second, 5, 7], [1, 7, 2, 0], [7, 1, 7, 7]])}
    settings |= {"image_idx": np.array([[2], [5], [features.NOWHERE]]), "vision_embeds": kept}
    names = ["rows", "found", "image_idx_output", "vision_embeds_RetainedState"]
    rows, found, after, same = session.run(names, settings)
    assert rows.tolist() == [[2, 3, -1, 4], [-1, 5, -1, -1], [-1] * 4]
    assert found[0, :2].tolist() == kept[0, 2:4].tolist()
    assert after[:2].tolist() == [[5], [6]]
    assert after[2] < 0
    np.testing.assert_array_equal(same, kept)
