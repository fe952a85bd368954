# SPDX-License-Identifier: Apache-2.0
"""8-bit floats of a checkpoint in graphs for cards: octet for octet, scales in their own type, the same numbers."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import parity
import pytest
import quantized
import torch
from fixtures_full_size import without_weights
from fixtures_qaic_graph import junk, open_host, program
from onnx_ir.tape import Tape
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.graph.numerics import FLOAT16, FLOAT32, DeviceNumerics
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.qefficient import QEFFAutoModelForCausalLM
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.emulation import device
from qeff_zoo.targets.qaic import lowering, ops
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import plan_file, write

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BFLOAT16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.together("llama-base")
GENUINE = ("ct-fp8-block", "ct-fp8-dynamic", "fp8-block", "torchao-fp8")


def compressed(strategy: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": groups,
    }


#: quantization_config, end of a scale's name, rows and columns of a scale (0 for all), types of floats and scales.
KINDS: Mapping[str, tuple[dict[str, Any], str, int, int, torch.dtype, torch.dtype]] = {
    # The last block of a row, and of a column, is smaller.
    "blocks": ({"quant_method": "fp8", "weight_block_size": [24, 24]}, "_inv", 24, 24, E4M3, BFLOAT16),
    "tensors": (compressed("tensor"), "", 0, 0, E4M3, FLOAT),
    "channels": (compressed("channel"), "", 1, 0, E4M3, BFLOAT16),
    "halves": (compressed("channel"), "", 1, 0, E4M3, HALF),
    "e5m2": ({"quant_method": "fp8"}, "", 0, 0, E5M2, FLOAT),
}  # fmt: skip


def quantize(source: Path, folder: Path, kind: str) -> dict[str, Tensor]:
    """Write a checkpoint whose projections are 8-bit floats; return the values of these."""
    config, end, height, width, element, scale = KINDS[kind]
    folder.mkdir()
    tensors, values = {}, {}
    for name, value in load_file(source / "model.safetensors").items():
        if "_proj" not in name or value.dim() != 2:
            tensors[name] = value
            continue
        rows, columns = value.shape
        tall, wide = min(height or rows, rows), min(width or columns, columns)
        whole = nn.functional.pad(value, (0, -columns % wide, 0, -rows % tall))
        largest = whole.unflatten(0, (-1, tall)).unflatten(-1, (-1, wide)).abs().amax((1, 3))
        scales = (largest / torch.finfo(element).max).to(scale)
        spread = scales.float().repeat_interleave(tall, 0).repeat_interleave(wide, 1)
        spread = spread[:rows, :columns]
        tensors[name] = (value / spread).to(element)
        tensors[f"{name}_scale{end}"] = scales if height or width else scales.reshape(1)
        values[name] = tensors[name].float() * spread
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    return values


def lowered(subject: parity.Subject, encoded: Any) -> Lowered:
    graph = SimpleNamespace(
        model=subject.graph(parity.CONTINUOUS), bindings=subject.bindings, encoded=encoded
    )
    return lowering.lower(graph, program(FLOAT32))


def constants(model: ir.Model) -> dict[str, ir.Value]:
    """Return the floats and scales that a graph dequantizes, by name."""
    nodes = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    values = [value for node in nodes for value in node.inputs]
    sources = [
        value if value.producer() is None else value.producer().inputs[0] for value in values
    ]
    return {str(value.name): value for value in sources}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_graphs_have_the_floats_of_the_checkpoint(kind: str, tmp_path: Path) -> None:
    subject = parity.subject("llama-base")
    values = quantize(subject.folder / "checkpoint", tmp_path / "c", kind)
    checkpoint = open_checkpoint(str(tmp_path / "c"))
    made = lowered(subject, checkpoint.encoded)
    assert made.ways["weights"] == {"kept": len(values)}
    assert {matrix.kept for matrix in made.numerics.matrices} == {True}
    assert made.model.opset_imports[""] == 21
    onnx.checker.check_model(without_weights(made.model), full_check=True)
    _, _, _, _, element, scale = KINDS[kind]
    types = {
        E4M3: "FLOAT8E4M3FN",
        E5M2: "FLOAT8E5M2",
        BFLOAT16: "BFLOAT16",
        HALF: "FLOAT16",
        FLOAT: "FLOAT",
    }
    found = {name: value.dtype.name for name, value in constants(made.model).items() if value.dtype}
    assert found == {
        **dict.fromkeys(values, types[element]),
        **dict.fromkeys((f"{name}.scales" for name in values), types[scale]),
    }

    stand_in = SimpleNamespace(folder=tmp_path, checkpoint=checkpoint)
    opened = open_host(stand_in, made.slots, ops.with_host_bodies(made.model))
    model = copy.deepcopy(subject.hf)
    model.load_state_dict(values, strict=False)
    ids = parity.tokens(rows=1)
    states = {state.name: junk([2, *state.axes[1:2], 40, state.axes[3]]) for state in opened.states}
    feeds = {"input_ids": ids, "position_ids": np.arange(ids.shape[1])[None]}
    (logits,) = opened.run(["logits"], {**feeds, "batch_index": np.array([[1]]), **states})
    expected, wide = (parity.reference(one, ids) for one in (model, parity.in_float64(model)))
    noise = np.abs(expected - wide).max()
    assert np.abs(logits[:, 0] - expected[:, -1]).max() <= parity.TOLERANCE["fp32"] * noise


@pytest.mark.parametrize("name", GENUINE)
def test_genuine_floats_and_scales_stay(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(quantized.GENUINE / name))
    ((tensor, encoded),) = checkpoint.encoded.items()
    format = Storage(FLOAT32, checkpoint.encoded).floats_of(tensor, tensor)
    assert format is not None
    slot = Slot("w", tensor, format, kept=True)
    write(plan_file([slot], checkpoint.tensors), checkpoint, tmp_path / "file")
    written = load_file(tmp_path / "file")
    stored = load_file(quantized.GENUINE / name / "model.safetensors")
    floats, scale = (stored[source] for source in encoded.sources)
    assert written["w"].dtype == floats.dtype
    assert torch.equal(written["w"].view(torch.uint8), floats.view(torch.uint8))
    assert written["w.scales"].dtype == scale.dtype
    by_block = written["w.scales"].float().repeat_interleave(format.block or floats.shape[1], 1)
    values = written["w"].float() * by_block[:, : floats.shape[1]]
    assert np.array_equal(values.numpy(), checkpoint.read(tensor))


def test_other_scales_and_changed_weights_are_no_constants() -> None:
    checkpoint = open_checkpoint(str(quantized.GENUINE / "fp8-block"))
    ((name, encoded),) = checkpoint.encoded.items()
    storage = Storage(FLOAT32, checkpoint.encoded)
    assert storage.floats_of(name, ["slice", 0, 0, 16, name]) == storage.floats_of(name, name)
    assert storage.floats_of(name, ["transpose", 0, 1, name]) is None
    assert storage.floats_of(name, ["sum", 0.5, name, name]) is None
    assert Storage(FLOAT32, named=((name, FLOAT16),)).floats_of(name, name) is None
    assert Storage(FLOAT32, {name: replace(encoded, floats=None)}).floats_of(name, name) is None


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, False),
        (compressed("channel"), False),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8"}}}, False),
        ({"quant_method": "mxfp8"}, True),
        ({**compressed("group"), "format": "mxfp8-quantized"}, True),
        ({"quant_method": "awq", "bits": 4}, True),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, True),
    ],
)
def test_compilers_get_8_bit_floats_by_request(
    config: Mapping[str, Any], stored: bool, tmp_path: Path
) -> None:
    subject = parity.subject("llama-base")
    described = {**subject.config, "quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "model.safetensors").symlink_to(subject.folder / "checkpoint/model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    plan = check(checkpoint, Request(target="qaic"))
    assert plan.programs[0].stored == stored
    assert any("--weights stored keeps them" in warning for warning in plan.warnings) != stored
    for weights in ("fp32", "stored"):
        plan = check(checkpoint, Request(target="qaic", weights=weights))
        assert not any("stores matrices" in warning for warning in plan.warnings)
        kept = weights == "stored" and formats.has_float8(config)
        assert plan.spec["quantization"].get("float8", 0) == kept
    assert "float8" not in check(checkpoint, Request(target="ort")).spec["quantization"]


def test_fp8_retain_weights_is_stored(tmp_path: Path) -> None:
    subject = parity.subject("llama-base")
    quantize(subject.folder / "checkpoint", tmp_path / "c", "channels")
    model = QEFFAutoModelForCausalLM.from_pretrained(tmp_path / "c", fp8_retain_weights=True)
    assert model._request("qaic", {}).weights == "stored"
    model = QEFFAutoModelForCausalLM.from_pretrained(tmp_path / "c", fp8_retain_weights=False)
    assert model._request("qaic", {}).weights is None


@pytest.mark.parametrize("scale", ["float32", "bfloat16"])
def test_an_emulated_device_rounds_dequantized_weights_once(scale: str, tmp_path: Path) -> None:
    values = np.array([[448, -3.5], [0.875, 20]], ml_dtypes.float8_e4m3fn)
    scales = np.array([1 / 3, 3e-6], np.dtype(scale))  # float16 has neither 1 / 3 nor 3e-6
    w, s = (
        ir.val(name, const_value=ir.tensor(array, name=name))
        for name, array in (("w", values), ("s", scales))
    )
    x = ir.val("x", ir.DataType.FLOAT, [2, 2])
    tape = Tape()
    wide = s if scale == "float32" else tape.op("Cast", [s], {"to": ir.DataType.FLOAT})
    y = tape.op("MatMul", [x, tape.op("DequantizeLinear", [w, wide], {"axis": 0})])
    y.name, y.type, y.shape = "y", x.type, x.shape
    graph = ir.Graph([x], [y], nodes=tape.nodes, initializers=[w, s], opset_imports={"": 21})
    model = ir.Model(graph, ir_version=10)
    device.apply(model, DeviceNumerics())
    ir.save(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (found,) = session.run(None, {"x": np.eye(2, dtype=np.float32)})
    exact = values.astype(np.float32) * scales.astype(np.float32)[:, None]
    assert np.array_equal(found, exact.astype(np.float16).astype(np.float32))
    rounded = scales.astype(np.float16).astype(np.float32)[:, None]
    assert not np.array_equal(found, (values.astype(np.float32) * rounded).astype(np.float16))
