# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-htp`: what its compiler gets agrees with Hugging Face; what it makes runs on its simulator."""

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import gptq_checkpoints
import numpy as np
import onnx_ir as ir
import onnxruntime
import parity
import pytest
import runnable_package
import static_graphs
from checkout import ROOT
from fixtures_encoders import embeddings, texts_for
from gptq_checkpoints import READ
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir.tape import Tape
from parity import CROSSED, CROSSED_ENCODERS

import qeff_zoo
from qeff_zoo import contract, pipeline
from qeff_zoo.checkpoint.encoded import Integers
from qeff_zoo.cli import main
from qeff_zoo.errors import CompileError, GenerationError
from qeff_zoo.graph import semantic
from qeff_zoo.graph.numerics import FLOAT32
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.store import Store
from qeff_zoo.targets.qnn_htp import lowering, processes, recurrence, rewrites
from qeff_zoo.weights.storage import Storage

pytestmark = pytest.mark.turns(3)

FLOAT = ir.TensorType(ir.DataType.FLOAT)
EVERY_INT32 = range(-(1 << 31), 1 << 31)

# --- what the compiler gets ----------------------------------------------------------------------


#: Of those that are crossed, what is lowered in its own way for HTP; every recipe has its verdict of the simulator.
STATIC = [
    *parity.STATES.values(),
    *(
        "gemma2-base",
        "gpt_oss-base",
        "falcon-alibi",
        "gpt2-base",
        "gemma4_text-experts",
        "doge-base",
    ),
    *("gemma3n_text-base", "llama4_text-base", "minimax-base", "minimax_m3_vl_text-base"),
    *("recurrent_gemma-base", "mamba-base", "mamba2-base", "kimi_linear-base", "zaya-base"),
]


@pytest.mark.parametrize("scenario", ["chunked", "padded_batch"])
@pytest.mark.parametrize("name", STATIC)
@pytest.mark.sampled(10, kept=["llama-base", "qwen3_next-base"])
def test_static_graphs_agree_with_hugging_face(name: str, scenario: str) -> None:
    parity.assert_close(parity.subject(name), "static", scenario, parity.PLAIN)


@pytest.mark.parametrize("name", CROSSED_ENCODERS)
@pytest.mark.sampled(3)
def test_static_encoders_agree_with_hugging_face(name: str) -> None:
    encoder, lengths = parity.subject(name), (12, 5)
    ids, mask = texts_for(encoder, lengths)
    expected = embeddings(encoder.hf, ids, lengths, "mean", norm=False)
    wide = embeddings(encoder.hf64, ids, lengths, "mean", norm=False)
    graph = static_graphs.encoder(encoder, rows=2, seq_len=ids.shape[1])
    got, *_ = graph.run({"input_ids": ids, "attention_mask": mask}).values()
    noise = np.abs(expected - wide).max()
    assert np.abs(got - expected).max() <= parity.TOLERANCE["static"] * noise


@pytest.mark.parametrize("name", [*CROSSED, *CROSSED_ENCODERS])
@pytest.mark.sampled(3)
def test_integers_of_portable_graphs_have_32_bits(name: str) -> None:
    """Compilers for devices truncate the others, silently."""
    subject = parity.subject(name)
    graph = subject.graph(parity.PLAIN if subject.recipe.task == "text-generation" else POOLED)
    for node in graph.graph.all_nodes():
        for place, value in enumerate(node.inputs):
            tensor = None if value is None else ir.convenience.get_const_tensor(value)
            if tensor is None or tensor.dtype != ir.DataType.INT64 or node.op_type == "Slice":
                continue  # the end of a slice may lie beyond every end
            numbers = tensor.numpy().ravel().tolist()
            assert all(number in EVERY_INT32 for number in numbers), (node.op_type, place)


POOLED = (("pooling", "mean"), ("normalize", False))


@given(
    delta=st.booleans(),
    decays=st.sampled_from(["one", "each"]),
    seq=st.integers(1, 40),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=20)
def test_recurrences_in_blocks_are_those_of_a_scan(
    delta: bool, decays: str, seq: int, groups: int, seed: int
) -> None:
    batch, heads, keys, columns = 2, 4, 6, 5
    rng = np.random.default_rng(seed)
    wide = 1 if decays == "one" else keys
    arrays = [
        rng.standard_normal((batch, heads, keys, columns)),
        -3 * rng.random((batch, seq, heads, wide)),
        0.4 * rng.standard_normal((batch, seq, groups, keys)),
        rng.standard_normal((batch, seq, heads, columns)),
        rng.standard_normal((batch, seq, groups, keys)),
        *([rng.random((batch, seq, heads))] if delta else []),
    ]
    feeds = {f"input{place}": array.astype(np.float32) for place, array in enumerate(arrays)}

    def run(*, expanded: bool) -> list[Any]:
        inputs = [
            ir.Value(name=name, shape=ir.Shape(feed.shape), type=FLOAT)
            for name, feed in feeds.items()
        ]
        op = "DeltaRecurrence" if delta else "LinearRecurrence"
        sizes = {"heads": heads, "groups": groups}
        node = ir.node(op, inputs, sizes, domain=SEMANTIC, num_outputs=2)
        for value, name, like in zip(node.outputs, ("y", "last"), (3, 0), strict=True):
            value.name, value.type, value.shape = name, FLOAT, ir.Shape(arrays[like].shape)
        graph = ir.Graph(
            inputs, node.outputs, nodes=[node], opset_imports={"": 18, SEMANTIC: 1}, name="g"
        )
        bodies = [
            function for function in semantic.functions() if function.name == op and not expanded
        ]
        if expanded:
            recurrence.expand(graph)
        return _run(ir.Model(graph, ir_version=10, functions=bodies), feeds)

    for got, wanted in zip(run(expanded=True), run(expanded=False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def _run(model: ir.Model, feeds: dict[str, Any]) -> list[Any]:
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feeds)
    return found


def _graph(make: Any, **inputs: Any) -> ir.Graph:
    """Make a graph of what a function records on a tape, from values of some arrays' types and shapes."""
    given = [
        ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        )
        for name, array in inputs.items()
    ]
    tape = Tape()
    made = make(tape, *given)
    made.name = "y"
    return ir.Graph(given, [made], nodes=tape.nodes, opset_imports={"": 18}, name="g")


def _norm(tape: Tape, x: ir.Value) -> ir.Value:
    two = tape.op("Constant", [], {"value_float": 2.0})
    axis = tape.op("Constant", [], {"value_ints": [-1]})
    mean = tape.op("ReduceMean", [tape.op("Pow", [x, two]), axis])
    safe = tape.op("Add", [mean, tape.op("Constant", [], {"value_float": 1e-5})])
    made = tape.op("Mul", [x, tape.op("Reciprocal", [tape.op("Sqrt", [safe])])])
    made.type, made.shape = x.type, x.shape
    return made


def _scatter(tape: Tape, data: ir.Value, index: ir.Value, updates: ir.Value) -> ir.Value:
    made = tape.op("ScatterElements", [data, index, updates], {"axis": 1})
    made.type, made.shape = data.type, data.shape
    return made


def _gather_nd(tape: Tape, data: ir.Value) -> ir.Value:
    places = tape.op("Constant", [], {"value": ir.tensor(np.array([[[0, 2]], [[1, -1]]]))})
    places.shape = ir.Shape([2, 1, 2])
    places.const_value = ir.tensor(np.array([[[0, 2]], [[1, -1]]]))
    made = tape.op("GatherND", [data, places])
    made.type, made.shape = data.type, ir.Shape([2, 1, 4])
    return made


def _pad(tape: Tape, x: ir.Value) -> ir.Value:
    pads = tape.op("Constant", [], {"value_ints": [0, 1, 2, 0]})
    hidden = tape.op("Constant", [], {"value_float": -1.0})
    pads.const_value, hidden.const_value = ir.tensor([0, 1, 2, 0]), ir.tensor(np.float32(-1.0))
    made = tape.op("Pad", [x, pads, hidden])
    made.type, made.shape = x.type, ir.Shape([4, 4])
    return made


def _exp(tape: Tape, x: ir.Value) -> ir.Value:
    made = tape.op("Exp", [x])
    made.type, made.shape = x.type, x.shape
    return made


REWRITTEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "SimplifiedLayerNormalization": (
        _norm,
        {"x": np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)},
    ),
    "Cast": (
        _scatter,
        {
            "data": np.ones((2, 4), bool),
            "index": np.array([[0, 3], [1, 1]]),
            "updates": np.zeros((2, 2), bool),
        },
    ),
    "Gather": (
        _gather_nd,
        {"data": np.arange(24, dtype=np.float32).reshape(2, 3, 4)},
    ),
    "Concat": (_pad, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}),
    "Max": (_exp, {"x": np.array([[-300.0, -40.0, -1.0, 2.0]], np.float32)}),
}


@pytest.mark.parametrize("op", REWRITTEN)
def test_rewritten_ops_compute_the_same(op: str) -> None:
    make, feeds = REWRITTEN[op]
    (wanted,) = _run(ir.Model(_graph(make, **feeds), ir_version=10), feeds)
    graph = _graph(make, **feeds)
    rewrites.rewrite(graph)
    assert op in {node.op_type for node in graph}
    (got,) = _run(ir.Model(graph, ir_version=10), feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-12)


# --- what the compiler makes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("htp") / "llama"
    return runnable_package.checkpoint(folder, "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("htp-store"))


def _build(checkpoint: Path, store: Store, *, validate: bool = False, **request: Any) -> Package:
    sizes = {"prefill_seq_len": 8, "ctx_len": 32, "full_batch_size": 3}
    wanted = {"target": "qnn-htp", **sizes, **request}
    found = pipeline.build(str(checkpoint), Request(**wanted), validate=validate, store=store)
    return found.package


@pytest.fixture(scope="module")
def package(checkpoint: Path, store: Store) -> Package:
    return _build(checkpoint, store, validate=True)


def test_a_package_is_validated_on_the_simulator(package: Package) -> None:
    assert (package.validated, package.verify()) == ("simulated", [])
    assert {check["level"] for check in package.manifest["validation"]} == {"simulated"}
    (program,) = package.programs
    assert program.numerics.activations == "float16"
    assert program.flags["soc_model"] == 43
    versions = package.manifest["spec"]["toolchain"]
    assert package.manifest["target"]["needs"]["onnxruntime-qnn"] == (
        f"=={versions['onnxruntime-qnn']}"
    )


def test_a_package_is_one_compiled_graph_for_each_specialization(package: Package) -> None:
    (program,) = package.programs
    folder = package.path / program.path
    names = {specialization["name"] for specialization in program.specializations}
    assert {path.name for path in folder.iterdir()} == {
        file for name in names for file in (f"{name}.onnx", f"{name}_qnn.bin")
    }
    for name in names:
        assert [node.op_type for node in ir.load(folder / f"{name}.onnx").graph] == ["EPContext"]
    assert not (package.path / "weights.safetensors").exists()


@pytest.mark.full
def test_the_same_build_has_the_same_bytes(
    package: Package, checkpoint: Path, tmp_path: Path
) -> None:
    other = _build(checkpoint, Store(tmp_path / "another"))
    assert other.build_key == package.build_key

    def compiled(of: Package) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (of.path / of.programs[0].path).iterdir()
        }

    assert compiled(other) == compiled(package)


@pytest.mark.full
def test_integers_of_a_checkpoint_stay(checkpoint: Path, store: Store, tmp_path: Path) -> None:
    kinds = {"v_proj": (8, 16), "_proj": (4, 32)}
    source = gptq_checkpoints.write(checkpoint, tmp_path / "gptq", kinds)
    package = _build(source, store, validate=True)
    assert package.validated == "simulated"
    assert package.manifest["programs"][0]["ways"] == {"weights": {"kept": 14}}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ({"bits": 4, "group": 32}, "kept"),
        ({"bits": 8, "group": 16, "zeros": READ}, "kept"),
        ({"bits": 4, "group": 32, "offsets": READ}, "decoded"),
        ({"bits": 4, "group": 32, "order": READ}, "decoded"),
        ({"bits": 4, "group": 24}, "decoded"),
    ],
)
def test_weights_without_compiler_support_are_dequantized(kind: dict[str, Any], way: str) -> None:
    subject = parity.subject("llama-base")
    integers = Integers(integers=READ, scales=READ, **kind)
    storage = Storage(FLOAT32, gptq_checkpoints.all_of(subject.checkpoint.tensors, integers))
    made = lowering.lower(subject.graph(parity.PLAIN), subject.bindings, storage, parity.CTX_LEN)
    assert made.ways == {"weights": {way: 28}}


def test_rows_at_different_positions_do_not_disturb_each_other(package: Package) -> None:
    """Continuous batching: prompts are read one by one, and rows without a token stay as they are."""
    texts = {2: [5, 9, 11, 17, 4, 8, 30, 12, 6, 7, 21], 0: [3, 14, 15]}
    alone: dict[int, list[Any]] = {}
    decoder = Decoder(runnable_package.opened(package))
    for row, tokens in texts.items():
        alone[row] = [
            decoder.prefill({row: Piece(tokens[:8], 0)})[row],
            *(
                decoder.decode({row: Piece([token], 8 + place)})[row]
                for place, token in enumerate(tokens[8:])
            ),
            decoder.decode({row: Piece([40], len(tokens))})[row],
        ]
    together = decoder.prefill({row: Piece(tokens[:8], 0) for row, tokens in texts.items()})
    for row in texts:
        np.testing.assert_array_equal(together[row], alone[row][0])
    for place, token in enumerate(texts[2][8:]):
        got = decoder.decode({2: Piece([token], 8 + place)})[2]
        np.testing.assert_array_equal(got, alone[2][1 + place])
    last = decoder.decode({row: Piece([40], len(tokens)) for row, tokens in texts.items()})
    for row in texts:
        np.testing.assert_array_equal(last[row], alone[row][-1])


def test_htp_package_runs_from_the_command_line(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", str(package.path), "--prompt", "the quick", "--generation-len", "3", "--json"]
    assert main(argv) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [len(output["token_ids"]) for output in answer["outputs"]] == [3]


def test_a_simulator_that_dies_is_an_error_and_not_the_end(package: Package) -> None:
    program: Any = runnable_package.opened(package)
    decoder = Decoder(program)
    decoder.decode({0: Piece([3], 0)})
    (simulator,) = program._open.values()
    os.kill(simulator._process.pid, signal.SIGKILL)
    with pytest.raises(GenerationError, match=r"could not run .* its process ended with -9"):
        decoder.decode({0: Piece([4], 1)})


def test_a_damaged_graph_is_refused(package: Package, tmp_path: Path) -> None:
    (program,) = package.programs
    name = program.specializations[0]["name"]
    for path in (package.path / program.path).glob(f"{name}*"):
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[: len(content) // 2 * (path.suffix == ".bin")])
    with pytest.raises(GenerationError, match=r"could not open .* inspect PACKAGE --verify"):
        processes.Simulator(tmp_path / f"{name}.onnx", 43)


def test_a_refused_operator_is_named_with_its_module(tmp_path: Path) -> None:
    weight = ir.Value(
        name="model.layers.3.mlp.up_proj.weight",
        shape=ir.Shape([32, 32]),
        type=FLOAT,
        const_value=ir.tensor(np.eye(32, dtype=np.float32), name="weight"),
    )
    x = ir.Value(name="x", shape=ir.Shape(["batch_size", 32]), type=FLOAT)
    product = ir.node("MatMul", [x, weight])
    refused = ir.node("Erf", product.outputs)
    refused.outputs[0].name = "y"
    refused.outputs[0].type, refused.outputs[0].shape = FLOAT, x.shape
    graph = ir.Graph(
        [x],
        refused.outputs,
        nodes=[product, refused],
        initializers=[weight],
        opset_imports={"": 18},
        name="g",
    )
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data="m.data")
    with pytest.raises(
        CompileError, match=r"refuses 1 of the operators: Erf in 'model.layers.3.mlp.up"
    ):
        processes.compile([str(tmp_path), "m.onnx", "out.onnx", "43", '{"batch_size": 2}'])


def test_without_the_compiler_the_extra_is_named(
    checkpoint: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.targets.engines.installed", lambda name: None)
    monkeypatch.setattr(pipeline.Assembly, "trace", pytest.fail)  # which takes long
    with pytest.raises(CompileError, match=r"pip install 'qeff-zoo\[qnn\]'"):
        _build(checkpoint, store, ctx_len=16)


@pytest.mark.parametrize(("found", "message"), [("2.6.0", "2.6.0 is"), (None, "of no version is")])
def test_another_version_of_the_compiler_is_refused(
    package: Package, found: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one version compiled another may open and compute wrongly."""
    monkeypatch.setattr("qeff_zoo.targets.engines.installed", lambda name: found)
    with pytest.raises(
        GenerationError, match=rf"qnn {message} installed. .* 'onnxruntime-qnn==2\.7"
    ):
        qeff_zoo.load(package)


@pytest.mark.parametrize(
    ("code", "expected_message", "message"),
    [
        (-9, "", "was killed by SIGKILL. .* ran out of memory"),
        (1, "write: No space left on device", "has no room left. .* Free some"),
        (1, "odd", "ended with 1. .* It said: odd"),
    ],
)
def test_a_failed_compilation_reports_its_reason(
    code: int, expected_message: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, "", expected_message)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(CompileError, match=f"HTP's compiler .*{message}"):
        processes.compile([str(tmp_path)])


def test_another_chip_is_another_package(checkpoint: Path) -> None:
    plans = [
        pipeline.make_plan(str(checkpoint), Request(target="qnn-htp", soc_model=soc))[1]
        for soc in (None, 43, 57)
    ]
    keys = [plan.build_key for plan in plans]
    assert keys[0] == keys[1] != keys[2]


# --- what became of every recipe -----------------------------------------------------------------


def test_every_recipe_has_a_verdict_and_most_agree() -> None:
    path = ROOT / "validated_models" / "_targets" / "qnn-htp.json"
    found = json.loads(path.read_bytes())["models"]
    agreeing: dict[bool, int] = {True: 0, False: 0}
    of_one_program = [one for one in parity.of_text() if not contract.find(one.task).before]
    for recipe in of_one_program:
        verdict = found[f"{recipe.model_type}-{recipe.tiny[0].name}"]
        assert verdict["verdict"] in ("agrees", "differs", "refused")
        if verdict["verdict"] == "agrees":
            assert verdict["max_relative_error"] <= verdict["<="]
            agreeing[recipe.task == "text-generation"] += 1
    assert agreeing[True] >= 110
    encoders = [recipe for recipe in of_one_program if recipe.task != "text-generation"]
    assert agreeing[False] == len(encoders)
