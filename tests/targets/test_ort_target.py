# SPDX-License-Identifier: Apache-2.0
"""The graph for ONNX Runtime: weights are used as they lie in the file, each is there once, and no other is read."""

import json
import math
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import parity
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from parity import CONTINUOUS, PLAIN, Subject
from safetensors import safe_open

from qeff_zoo.checkpoint.expressions import sources_of
from qeff_zoo.errors import CompileError
from qeff_zoo.export import folding
from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import FLOAT32, WEIGHTS
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.ort import lowering, trial
from qeff_zoo.weights.quantization import Stored, dequantize, round_trip
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import evaluate

pytestmark = pytest.mark.turns(2)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
STORAGES = list(WEIGHTS)
NAMES = ["llama-base", "gemma2-base", "gpt2-base", "mixtral-base"]


def grouped(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.together(name)) for name in names]


@cache
def lowered(name: str, storage: str) -> Lowered:
    return parity.subject(name).lower(storage)


def ops_of(name: str, storage: str) -> Counter[str]:
    return Counter(node.op_type for node in lowered(name, storage).model.graph)


def weights_of(node: ir.Node) -> list[str]:
    return [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]


# --- how matrices are used -----------------------------------------------------------------------


@pytest.mark.parametrize("name", grouped("llama-base", "gemma2-base", "mixtral-base"))
def test_fp32_matrices_are_used_as_they_lie(name: str) -> None:
    graph = lowered(name, "fp32").model.graph
    found = [node for node in graph if node.op_type == "FusedMatMul"]
    assert found
    for node in found:
        assert node.attributes.get_int("transB") == 1
        weight = node.inputs[1]
        assert weight is not None
        assert weight.is_initializer()
    kinds = ops_of(name, "fp32")
    assert kinds["Linear"] == kinds["MatMulNBits"] == 0
    turned = [node for node in graph if node.op_type == "Transpose" and weights_of(node)]
    assert turned == []


@pytest.mark.parametrize("storage", ["int8", "int4"])
@pytest.mark.parametrize("name", grouped(*NAMES))
def test_quantized_matrices_go_through_their_kernels(name: str, storage: str) -> None:
    graph = lowered(name, storage).model.graph
    bits = {"int8": 8, "int4": 4}[storage]
    products = [node for node in graph if node.op_type == "MatMulNBits"]
    for node in products:
        packed, scales, *zero_points = node.inputs[1:]
        assert packed is not None
        assert scales is not None
        rows, columns = node.attributes.get_int("N"), node.attributes.get_int("K")
        blocks = math.ceil(columns / parity.BLOCK_SIZE)
        assert node.attributes.get_int("bits") == bits
        assert node.attributes.get_int("block_size") == parity.BLOCK_SIZE
        assert list(packed.shape) == [rows, blocks, parity.BLOCK_SIZE * bits // 8]
        assert math.prod(scales.shape) == rows * blocks
        half = [rows, math.ceil(blocks / 2)]
        assert [list(value.shape) for value in zero_points] == ([half] if bits == 4 else [])
    of_attention = 2  # one makes query, key and value
    of_mlp = {"gpt2-base": 2, "mixtral-base": 1}.get(
        name, 3
    )  # a router; its experts are one kernel
    assert len(products) == 4 * (of_attention + of_mlp) + 1
    kinds = ops_of(name, storage)
    assert kinds["QMoE"] == (4 if name == "mixtral-base" else 0)
    assert kinds["Linear"] == kinds["FusedMatMul"] == kinds["Gemm"] == 0
    assert kinds["GatherBlockQuantized"] == (2 if name == "gpt2-base" else 1)
    for node in graph:  # all other products are those of attention and positions
        if node.op_type == "MatMul":
            assert weights_of(node) == [] or "inv_freq" in str(weights_of(node))


@pytest.mark.parametrize("storage", STORAGES)
def test_norms_are_one_node_with_the_offset_in_the_weight(storage: str) -> None:
    graph = lowered("gemma2-base", storage).model.graph
    norms = [node for node in graph if node.op_type == "SimplifiedLayerNormalization"]
    assert len(norms) == 4 * 4 + 1
    slots = {slot.name: slot for slot in lowered("gemma2-base", storage).slots}
    for node in norms:
        (weight,) = weights_of(node)
        assert (slots[weight].add, slots[weight].format) == (1.0, FLOAT32)
    assert not any(slot.add for slot in lowered("llama-base", storage).slots)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("llama-base", set()),
        # Layers that look at chunks, which the kernel does not.
        ("llama4_text-base", {"CacheWrite", "Attention"}),
    ],
)
def test_layers_are_inlined_and_other_ops_keep_their_bodies(
    name: str, kept: set[str], storage: str
) -> None:
    model = lowered(name, storage).model
    assert {node.op_type for node in model.graph if node.domain == SEMANTIC} == kept
    assert {function.name for function in model.functions.values()} == kept
    assert folding.DOMAIN not in {node.domain for node in model.graph}
    assert set(model.opset_imports) == {"", "com.microsoft", *([SEMANTIC] if kept else [])}


# --- what the file holds -------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", grouped("gemma2-base", "gpt2-base", "qwen2-base"))
def test_a_tied_embedding_is_stored_once(name: str, storage: str) -> None:
    subject = parity.subject(name)
    slots = lowered(name, storage).slots
    head = subject.hf.get_output_embeddings().weight
    assert subject.hf.get_input_embeddings().weight is head
    (tensor,) = {
        str(subject.bindings[name_])
        for name_, value in subject.hf.state_dict().items()
        if value.data_ptr() == head.data_ptr()
    }
    assert [tensor in sources_of(slot.expression) for slot in slots].count(True) == 1
    size = sum(math.prod(subject.checkpoint.tensors[t].shape) for t in used(slots))
    assert size == sum(p.numel() for p in subject.hf.parameters())


def used(slots: list[Any]) -> list[str]:
    return [tensor for slot in slots for tensor in sources_of(slot.expression)]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", grouped(*NAMES))
def test_every_checkpoint_tensor_is_read_once(name: str, storage: str) -> None:
    counted = Counter(used(lowered(name, storage).slots))
    assert set(counted) == set(parity.subject(name).checkpoint.tensors)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("storage", ["int8", "int4", "w8a8"])
def test_input_major_matrices_are_transposed_where_they_are_packed(storage: str) -> None:
    subject = parity.subject("gpt2-base")
    slots = {slot.name: slot for slot in lowered("gpt2-base", storage).slots}
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        slot = slots[f"transformer.h.2.{name}.weight"]
        own = subject.hf.state_dict()[slot.name].numpy()
        np.testing.assert_array_equal(evaluate(slot.expression, subject.checkpoint), own.T)
    unturned = {slot.name: slot for slot in lowered("gpt2-base", "fp32").slots}
    expression = unturned["transformer.h.2.mlp.c_fc.weight"].expression
    assert isinstance(expression, str)


def test_an_expert_reads_its_own_tensors_alone() -> None:
    subject = parity.subject("mixtral-base")
    slots = {slot.name: slot for slot in lowered("mixtral-base", "fp32").slots}
    experts = [name for name in slots if ".experts." in name]
    assert len(experts) == 4 * 5 * 2
    for name in experts:
        path, _, number = name.rpartition(".")
        sources = sources_of(slots[name].expression)
        assert len(sources) == (2 if path.endswith("gate_up_proj") else 1)
        assert all(f".experts.{number}." in source for source in sources)
        own = subject.hf.state_dict()[path][int(number)].numpy()
        np.testing.assert_array_equal(evaluate(slots[name].expression, subject.checkpoint), own)


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_stacks_of_experts_have_gates_and_ups_interleaved(storage: str) -> None:
    subject = parity.subject("mixtral-base")
    slots = {slot.name: slot for slot in lowered("mixtral-base", storage).slots}
    experts = [name for name in slots if ".experts." in name]
    assert len(experts) == 4 * 2
    for name in experts:
        own = subject.hf.state_dict()[name].numpy()
        count, rows, columns = own.shape
        if name.endswith("gate_up_proj"):
            own = own.reshape(count, 2, rows // 2, columns).swapaxes(1, 2).reshape(own.shape)
        np.testing.assert_array_equal(evaluate(slots[name].expression, subject.checkpoint), own)


# --- the file ------------------------------------------------------------------------------------


@cache
def folder_of(name: str, storage: str) -> Path:
    folder = Path(tempfile.mkdtemp(dir=parity.subject(name).folder)) / storage
    return parity.subject(name).save_lowered(folder, storage).parent


def external(folder: Path) -> dict[str, tuple[onnx.TensorProto, dict[str, str]]]:
    model = onnx.load(folder / "graph.onnx", load_external_data=False)
    return {
        tensor.name: (tensor, {entry.key: entry.value for entry in tensor.external_data})
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", grouped(*NAMES))
def test_graph_points_into_the_safetensors_file(name: str, storage: str) -> None:
    """What the graph reads at its offsets is what safetensors reads by name."""
    folder = folder_of(name, storage)
    path = folder / external_data.WEIGHTS
    raw = path.read_bytes()
    with safe_open(path, "np") as file:
        names = {key for key in file.keys() if not key.startswith("__pad")}  # noqa: SIM118
        found = set()
        for initializer, (tensor, where) in external(folder).items():
            assert where["location"] == external_data.WEIGHTS
            offset, length = int(where["offset"]), int(where["length"])
            assert offset % 64 == 0
            assert 8 + struct.unpack("<Q", raw[:8])[0] <= offset <= len(raw) - length
            entry = initializer.removesuffix(".blocks")
            own = file.get_tensor(entry)
            assert own.tobytes() == raw[offset : offset + length]
            assert math.prod(tensor.dims) == own.size
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            assert own.dtype == dtype
            found.add(entry)
    # A table in which rows are looked up and no more has zero points as others have, which nothing reads.
    looked_up = {
        matrix.name for matrix in lowered(name, storage).numerics.matrices if not matrix.multiplied
    }
    assert names - found == (
        {f"{one}.zero_points" for one in looked_up} if storage == "w8a8" else set()
    )
    assert found <= names
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    ends = sorted(entry["data_offsets"] for entry in header.values() if "data_offsets" in entry)
    assert all(before[1] == after[0] for before, after in pairwise(ends))


@pytest.mark.parametrize("name", grouped(*NAMES))
def test_fp32_file_holds_the_checkpoints_values(name: str) -> None:
    subject = parity.subject(name)
    slots = {slot.name: slot for slot in lowered(name, "fp32").slots}
    with safe_open(folder_of(name, "fp32") / external_data.WEIGHTS, "np") as file:
        for key, slot in slots.items():
            own = evaluate(slot.expression, subject.checkpoint)
            np.testing.assert_array_equal(file.get_tensor(key), own + np.float32(slot.add))


@pytest.mark.parametrize("storage", ["int8", "int4", "w8a8"])
@pytest.mark.parametrize("name", grouped(*NAMES))
def test_packed_values_are_those_of_the_round_trip(name: str, storage: str) -> None:
    subject = parity.subject(name)
    with safe_open(folder_of(name, storage) / external_data.WEIGHTS, "np") as file:
        for slot in lowered(name, storage).slots:
            if slot.format != parity.FORMATS[storage]:
                continue
            own = evaluate(slot.expression, subject.checkpoint)
            kinds = ("", ".scales", ".zero_points")[: 2 if storage == "int8" else 3]
            stored = Stored(*(file.get_tensor(slot.name + kind) for kind in kinds))
            left = dequantize(stored, own.shape)
            np.testing.assert_array_equal(left, round_trip(own, parity.FORMATS[storage]))
            columns = slot.format.block or own.shape[-1]
            scales = stored.scales[..., None] if slot.format.per_channel else stored.scales
            step = np.repeat(scales, columns, -1)[:, : own.shape[1]]
            assert (np.abs(left - own) <= np.abs(step) * 0.5000001 + 1e-12).mean() > 0.9


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", grouped(*NAMES))
def test_session_opens_in_silence_and_reads_the_file_in_place(
    name: str,
    storage: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = folder_of(name, storage)
    capfd.readouterr()
    session = onnxruntime.InferenceSession(
        str(folder / "graph.onnx"), providers=["CPUExecutionProvider"]
    )
    assert capfd.readouterr() == ("", "")
    assert [value.name for value in session.get_inputs()] == [
        value.name for value in parity.subject(name).graph().graph.inputs
    ]
    small = (folder / "graph.onnx").stat().st_size
    assert small < 300_000 < (folder / external_data.WEIGHTS).stat().st_size + 300_000


@pytest.mark.parametrize("storage", ["fp32", "int4", "w8a8"])
def test_a_call_that_shows_that_it_can_be_made_multiplies_a_few_rows(storage: str) -> None:
    folder = folder_of("llama-base", storage)
    model = ir.load(folder / "graph.onnx")

    def logits() -> Array:
        ir.save(model, folder / "trial.onnx")
        steps = parity.session_steps(parity.open_session(folder / "trial.onnx"), 1)
        return steps.step(parity.tokens()[:1, :3], np.array([[0, 1, 2]]))

    whole, kernels = logits(), ("MatMulNBits", "FusedMatMul", "QGemm")
    products = [node for node in model.graph if node.op_type in kernels]
    assert trial.shorten(model.graph) == len(products)
    for node in model.graph:
        tables = node.inputs[1:] if node.op_type in kernels else []
        assert all(table.shape[0] == 16 for table in tables if table and table.is_initializer())
    short = logits()
    assert short.shape == whole.shape
    assert short[..., :16].all()
    assert not short[..., 16:].any()
    *_, down, head = (node for node in model.graph if node.op_type in kernels)
    head.replace_input_with(0, down.inputs[0])
    with pytest.raises((Fail, RuntimeError), match=r"(?i)dim"):  # its left side has another width
        logits()


def test_a_moved_folder_works(tmp_path: Path) -> None:
    folder = folder_of("llama-base", "fp32")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("graph.onnx", external_data.WEIGHTS):
        (moved / name).write_bytes((folder / name).read_bytes())
    assert str(tmp_path).encode() not in (moved / "graph.onnx").read_bytes()
    steps = parity.session_steps(parity.open_session(moved / "graph.onnx"), 1)
    assert np.isfinite(steps.step(parity.tokens()[:1, :3], np.array([[0, 1, 2]]))).all()


# --- odd shapes ----------------------------------------------------------------------------------

#: Widths that are no multiple of a block, tied, so that one tensor is a table and a matrix.
ODD = {
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 1,
    "tie_word_embeddings": True,
}


@cache
def odd() -> Subject:
    llama = parity.all_cases()["llama-base"]
    return Subject({**llama.config, **ODD}, llama.recipe)


@pytest.mark.parametrize("storage", ["fp32", "int8", "int4"])
def test_widths_that_fill_no_block(storage: str) -> None:
    """ONNX Runtime has no lookup in such a table: it stays float32, and only the product is quantized."""
    subject = odd()
    slots = subject.lower(storage).slots
    assert len({slot.name for slot in slots}) == len(slots)
    steps = parity.session_steps(subject.lowered(storage, PLAIN, 1), parity.ROWS)
    ids = parity.tokens()
    got = steps.step(ids, np.tile(np.arange(parity.PROMPT), (parity.ROWS, 1)))
    rounded = subject.rounded(storage)
    if storage != "fp32":  # untie: the lookup is not rounded
        head = rounded.lm_head
        rounded.lm_head = type(head)(1, 1, bias=False)
        rounded.lm_head.weight = type(head.weight)(head.weight.clone(), requires_grad=False)
        table = subject.hf.get_input_embeddings().weight
        quantized = any(
            n.op_type == "GatherBlockQuantized" for n in subject.lower(storage).model.graph
        )
        if not quantized:
            rounded.get_input_embeddings().weight.copy_(table)
    expected = parity.reference(rounded, ids)[:, -1]
    noise = np.abs(expected - parity.reference(parity.in_float64(rounded), ids)[:, -1]).max()
    assert np.abs(got - expected).max() <= parity.TOLERANCE["fp32"] * noise


def test_an_unshaped_initializer_is_refused() -> None:
    subject = parity.subject("llama-base")
    model = subject.graph()
    model.graph.initializers["lm_head.weight"].shape = ir.Shape(["n", 64])
    with pytest.raises(CompileError, match=r"'lm_head.weight' has shape .* expected a static one"):
        lowering.lower(model, subject.bindings, Storage(FLOAT32))


@pytest.mark.parametrize("storage", STORAGES)
def test_continuous_batching_lowers_alike(storage: str) -> None:
    subject = parity.subject("llama-base")
    plain, slots = lowered("llama-base", storage), subject.lower(storage, CONTINUOUS)
    assert [slot.name for slot in plain.slots] == [slot.name for slot in slots.slots]
    every = [
        {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
        | {function.name for function in model.functions.values()}
        for model in (plain.model, slots.model)
    ]
    assert every[0] == every[1]


@pytest.mark.together("llama-base")
def test_a_cached_graph_is_lowered_without_torch(tmp_path: Path) -> None:
    """Also one with slots, whose ops get other bodies."""
    subject = parity.subject("llama-base")
    ir.save(subject.graph(CONTINUOUS), tmp_path / "graph.onnx")
    (tmp_path / "bindings.json").write_text(json.dumps(subject.bindings))
    code = """
import json, sys
import onnx_ir as ir
from qeff_zoo.graph.numerics import format_of
from qeff_zoo.targets.ort import lowering, trial
from qeff_zoo.weights.storage import Storage
with open("bindings.json") as file:
    lowered = lowering.lower(ir.load("graph.onnx"), json.load(file), Storage(format_of("int8", 32)), 40)
assert lowered.ways["attention"]
print([name for name in ("torch", "transformers", "onnxscript") if name in sys.modules])
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
