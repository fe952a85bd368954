# SPDX-License-Identifier: Apache-2.0
"""Target `openvino`: OpenVINO computes what ONNX Runtime does, for prompts and encoders; what it lacks is refused."""

from dataclasses import replace
from pathlib import Path

import gptq_checkpoints
import numpy as np
import onnx
import onnxruntime
import pytest
from fixtures_builds import Models
from gguf_files import write as write_gguf
from runnable_package import opened

from qeff_zoo import load, pipeline
from qeff_zoo.errors import CompileError, PackageError
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.program import Array
from qeff_zoo.store import Store
from qeff_zoo.targets.openvino import session

pytestmark = pytest.mark.turns(3)

ROWS = 3
SIZES = {"weights": "int8", "ctx_len": 64, "prefill_seq_len": 16, "full_batch_size": ROWS}
#: Of a row's length: both round left sides of products to int8, OpenVINO not those of the smallest.
CLOSE = 0.06
PROMPTS = [[7, 9, 11], [*range(20, 45)], [*range(60, 72)], [*range(100, 140)]]


def built(models: Models, home: Path, target: str) -> Package:
    return models.build(models.llama, home / target, target=target, **SIZES)


def distance(got: Array, expected: Array) -> float:
    """Return how far the farthest row is, relative to what is expected of it."""
    off = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(off.max())


def traced(models: Models, home: Path) -> Store:
    """Return a store that has the graph of a Llama without slots."""
    models.trace(models.llama, home, ctx_len=48, prefill_seq_len=16)
    return Store(home)


def write_graph(
    folder: Path,
    node: onnx.NodeProto,
    inputs: list[onnx.ValueInfoProto],
    results: list[onnx.ValueInfoProto],
    weights: dict[str, Array],
) -> Path:
    """Write a model of one node."""
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = onnx.helper.make_graph([node], "graph", inputs, results, initializers)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    path = folder / "graph.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.filterwarnings("ignore:.*Rounding weights costs")  # of random ones
def test_a_package_is_validated(models: Models, tmp_path: Path) -> None:
    choices = Request(target="openvino", weights="int4", ctx_len=48, prefill_seq_len=16)
    done = pipeline.build(str(models.llama), choices, store=traced(models, tmp_path))
    assert done.package.validated == "checkpoint"


def test_integers_are_the_default(models: Models, tmp_path: Path) -> None:
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    store = traced(models, tmp_path)
    done = pipeline.build(str(models.llama), choices, validate=False, store=store)
    assert done.package.manifest["spec"]["quantization"]["weights"] == "int8"


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.sampled(2)
def test_integers_of_a_checkpoint_stay(ordered: bool, models: Models, tmp_path: Path) -> None:
    kinds = {"v_proj": (4, 16), "down_proj": (8, 32), "_proj": (4, 32)}
    source = gptq_checkpoints.write(models.llama, tmp_path / "gptq", kinds, ordered=ordered)
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    store = traced(models, tmp_path / "store")
    done = pipeline.build(str(source), choices, validate=ordered, store=store)
    assert done.package.validated == ("checkpoint" if ordered else "none")
    (program,) = done.package.programs
    found = {
        (matrix.format.bits, matrix.format.block)
        for matrix in program.numerics.matrices
        if matrix.kept
    }
    assert found == set(kinds.values())


def test_minima_are_subtracted(models: Models, tmp_path: Path) -> None:
    """Attention reads what is left as it reads products, else OpenVINO does not know the number of heads."""
    source = write_gguf(tmp_path / "m.gguf", models.llama, {"": "Q4_1"})
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    store = traced(models, tmp_path / "store")
    origin = {"config_from": str(models.llama)}
    done = pipeline.build(str(source), choices, validate=False, store=store, **origin)
    (program,) = done.package.programs
    assert any(matrix.format.offsets for matrix in program.numerics.matrices)


def test_left_sides_are_rounded_in_the_smallest_blocks(models: Models, tmp_path: Path) -> None:
    package = models.build(models.bert, tmp_path, target="openvino", weights="int8")
    (program,) = package.programs
    first, *others = (matrix for matrix in program.numerics.matrices if matrix.multiplied)
    smaller = replace(first, format=replace(first.format, block=16))
    looked_up = replace(smaller, multiplied=False, gathered=True)
    for changed, size in ((smaller, 16), (looked_up, others[0].format.block)):
        numerics = replace(program.numerics, matrices=(changed, *others))
        made = session.compiled(package.path / program.path, numerics)
        assert made.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == size


def test_prompts_in_pieces_give_the_logits_of_onnx_runtime(models: Models, tmp_path: Path) -> None:
    """Pieces of many tokens and of few, in rows of different lengths, as OpenVINO and ONNX Runtime share them."""
    found = []
    for target in ("ort", "openvino"):
        decoder = Decoder(opened(built(models, tmp_path, target)))
        logits = [decoder.prefill({row: Piece(PROMPTS[row][:16], 0) for row in range(ROWS)})]
        logits.append(decoder.prefill({1: Piece(PROMPTS[1][16:], 16)}))
        logits.append(decoder.decode({0: Piece([5], 3), 1: Piece([6], 25), 2: Piece([8], 12)}))
        logits.append(decoder.prefill({2: Piece([*range(30, 40)], 13)}))
        found.append(np.array([values for logit in logits for _, values in sorted(logit.items())]))
    expected, got = found
    assert distance(got, expected) <= CLOSE


def test_slots_answer_as_one_request_at_a_time(models: Models, tmp_path: Path) -> None:
    opened_once = load(built(models, tmp_path, "openvino").path, threads=1)

    def answers(prompts: list[list[int]]) -> list[list[int]]:
        outputs = opened_once.generate(prompts, generation_len=8, ignore_eos=True)
        return [output.token_ids for output in outputs]

    assert answers(PROMPTS) == [answers([prompt])[0] for prompt in PROMPTS]


def test_an_encoder_embeds_as_in_onnx_runtime(models: Models, tmp_path: Path) -> None:
    texts = ["the quick brown fox", "a text of words that are there twice"]
    expected, got = (
        load(
            models.build(models.bert, tmp_path / target, target=target, weights="int8").path
        ).embed(texts)
        for target in ("ort", "openvino")
    )
    assert distance(np.array(got), np.array(expected)) <= CLOSE


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gemma3_text", "ignores sliding_window_cache"),
        ("gemma2", "ignores softcap"),
        ("mamba", "is not a cache of an attention"),
    ],
)
@pytest.mark.sampled(3)
def test_op_without_openvino_support_is_reported(
    model_type: str, reason: str, models: Models, tmp_path: Path
) -> None:
    checkpoint = models.checkpoint(model_type, model_type)
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    with pytest.raises(CompileError, match=rf"{reason}.*Build it with --target ort"):
        pipeline.build(str(checkpoint), choices, validate=False, store=Store(tmp_path))


def test_a_head_size_that_the_kernel_lacks_is_named(models: Models, tmp_path: Path) -> None:
    checkpoint = models.checkpoint("narrow", "llama", head_dim=20)
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    with pytest.raises(CompileError, match="since the head size is not a multiple of 8"):
        pipeline.build(str(checkpoint), choices, validate=False, store=Store(tmp_path))


@pytest.mark.parametrize(
    "turns",
    [{}, {"pairs": 16}, {"pairs": 8}, {"pairs": 16, "interleaved": True}],
)
def test_attention_from_some_tokens_after_others(turns: dict[str, int], tmp_path: Path) -> None:
    """What ONNX Runtime's kernel says, without a past and behind one; of keys and values what the call adds."""
    groups, heads, size, context = 2, 6, 32, 12
    rng, pairs = np.random.default_rng(0), turns.get("pairs", 0)
    angles = rng.random((context, pairs), np.float32)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles)} if pairs else {}
    types = {"float": onnx.TensorProto.FLOAT, "int32": onnx.TensorProto.INT32}
    widths = {"query": heads * size, "key": groups * size, "value": groups * size}
    shapes = {name: ("float", [1, "seq", width]) for name, width in widths.items()}
    pasts = {f"past_{name}": ("float", [1, groups, context, size]) for name in ("key", "value")}
    shapes |= pasts | {"newest": ("int32", [1]), "total": ("int32", [1])}
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        [*shapes, *weights],
        ["found", "new_keys", "new_values"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=groups,
        scale=0.3,
        do_rotary=int(bool(pairs)),
        rotary_interleaved=int(turns.get("interleaved", False)),
    )
    inputs = [
        onnx.helper.make_tensor_value_info(name, types[kind], shape)
        for name, (kind, shape) in shapes.items()
    ]
    results = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in node.output
    ]
    path = write_graph(tmp_path, node, inputs, results, weights)
    kernel, made = onnxruntime.InferenceSession(path), session.compiled(path, Numerics())
    for start, count in ((0, 5), (3, 1), (5, 4)):
        given = {
            name: rng.standard_normal((1, count, width), np.float32)
            for name, width in widths.items()
        }
        given |= {
            name: rng.standard_normal(shape, np.float32) for name, (_, shape) in pasts.items()
        }
        stop = start + count
        given |= {"newest": np.array([stop - 1], np.int32), "total": np.array([stop], np.int32)}
        expected, *states = kernel.run(None, given)
        for got, wanted in zip(
            made(given).values(),
            (expected, *(state[:, :, start:stop] for state in states)),
            strict=True,
        ):
            np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_with_an_odd_number_of_blocks_are_looked_up(bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, blocks, block = 5, 3, 16
    packed = blocks * block * bits // 8
    tables = {
        "data": rng.integers(0, 256, (rows, packed), np.uint8),
        "scales": rng.random((rows, blocks), np.float32),
        "zeros": rng.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8),
    }
    node = onnx.helper.make_node(
        "GatherBlockQuantized",
        ["data", "indices", "scales", "zeros"],
        ["found"],
        domain="com.microsoft",
        bits=bits,
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )
    indices = onnx.helper.make_tensor_value_info("indices", onnx.TensorProto.INT64, ["a", "b"])
    result = onnx.helper.make_tensor_value_info("found", onnx.TensorProto.FLOAT, None)
    path = write_graph(tmp_path, node, [indices], [result], tables)
    given = {"indices": np.array([[4, 0, 2], [1, 1, 3]])}
    (expected,) = onnxruntime.InferenceSession(path).run(None, given)
    (got,) = session.compiled(path, Numerics())(given).values()
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_openvino_reports_nothing_to_its_maker() -> None:
    from openvino.tools import ovc  # after the target, as everywhere

    assert type(ovc.telemetry).__module__ == "openvino.tools.ovc.telemetry_stub"


def test_without_openvino_the_extra_is_named(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.targets.engines.installed", lambda _: None)
    choices = Request(target="openvino", ctx_len=48, prefill_seq_len=16)
    store = traced(models, tmp_path)
    with pytest.raises(CompileError, match=r"pip install 'qeff-zoo\[openvino\]'"):
        pipeline.build(str(models.llama), choices, validate=False, store=store)


def test_a_damaged_graph_is_refused(models: Models, tmp_path: Path) -> None:
    package = models.build(models.bert, tmp_path, target="openvino", weights="int8")
    (program,) = package.programs
    path = package.path / program.path
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(PackageError, match=r" cannot open .* is damaged: .* Build or pull it"):
        opened(package)
