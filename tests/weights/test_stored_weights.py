# SPDX-License-Identifier: Apache-2.0
"""Packages of quantized checkpoints: integers stay bit for bit where a kernel takes them, all else is told."""

import json
import shutil
import tempfile
import tracemalloc
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import onnx_ir as ir
import onnxruntime
import peft_adapters
import pytest
from checkout import ROOT
from fixtures_builds import Models, kept
from fuzzing import example_count
from gguf_files import write as write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from quantized import GENUINE, GOLDENS, MATRIX, quantize, random_mxfp4
from runnable_package import edit_json, opened
from safetensors import torch as torch_safetensors
from safetensors.numpy import load_file, save_file

import qeff_zoo
from qeff_zoo.checkpoint import expressions as ex
from qeff_zoo.checkpoint.encoded import Encoded, Integers, of_integers
from qeff_zoo.checkpoint.formats import METHODS
from qeff_zoo.checkpoint.gguf.index import TYPES
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, index_tensors
from qeff_zoo.cli import main
from qeff_zoo.errors import CheckpointError, CompileError, PlanError
from qeff_zoo.graph.numerics import FLOAT32, NEAREST, Format, Numerics, format_of
from qeff_zoo.package import Package
from qeff_zoo.pipeline import graphs
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.targets.ort import lowering
from qeff_zoo.validation.ladder import validate
from qeff_zoo.weights import writing
from qeff_zoo.weights.storage import Storage

Array = np.ndarray[Any, Any]
#: Methods that are read as another one.
ALIASES = {"fbgemm_fp8", "mxfp8", "modelopt_fp4", "modelopt_mxfp8"}


# --- integers, packed anew ------------------------------------------------------------------------
class Source:
    """Tensors of integers in memory."""

    def __init__(self, encoded: dict[str, Encoded]) -> None:
        self.encoded = encoded
        self.tensors = {
            name: TensorInfo(name, "F32", one.shape, Path("none"), 0, 0)
            for name, one in encoded.items()
        }

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        one = self.encoded[name]
        return one.values(self.read_stored, start or 0, one.shape[0] if stop is None else stop)

    def read_stored(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        raise AssertionError("the parts are in memory")

    def release(self, name: str) -> None:
        pass


def in_memory(
    random: np.random.Generator,
    shape: tuple[int, ...],
    bits: int,
    group: int,
    *,
    zeros: bool = False,
    offsets: bool = False,
    ordered: bool = False,
) -> Encoded:
    groups = (*shape[:-1], -(-shape[-1] // group))

    def part(array: Array) -> Any:
        return lambda read, start, stop: array[start:stop]

    def positive() -> Any:
        return part(random.random(groups, np.float32) + np.float32(0.1))

    def drawn(*shape: int) -> Any:
        return part(random.integers(0, 1 << bits, shape, np.uint8))

    order = random.permutation(shape[-1])
    integers = Integers(
        bits=bits,
        group=group,
        integers=drawn(*shape),
        scales=positive(),
        zeros=drawn(*groups) if zeros else None,
        offsets=positive() if offsets else None,
        order=(lambda read: order) if ordered else None,
    )
    return of_integers(shape, ("nowhere",), integers)


def fields(octets: Array, bits: int) -> Array:
    ones = np.unpackbits(octets, axis=-1, bitorder="little")
    ones = ones.reshape(*octets.shape[:-1], -1, bits)
    found: Array = (ones << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return found


def as_the_kernel_reads(stored: dict[str, Array], columns: int, format: Format) -> Array:
    """Dequantize as MatMulNBits says, less the offsets, its columns where they belong."""
    scales = stored["w.scales"]
    lead, blocks = scales.shape[:-1], scales.shape[-1]
    integers = fields(stored["w"], format.bits).astype(np.float32)
    zeros = np.full(scales.shape, 1 << (format.bits - 1), np.float32)
    if format.zero_points:
        zeros = fields(stored["w.zero_points"], format.bits)[..., :blocks].astype(np.float32)
    values = (integers - zeros[..., None]) * scales[..., None]
    assert format.offsets or not values.reshape(*lead, -1)[..., columns:].any()
    if format.offsets:
        values -= stored["w.offsets"][..., None]
    values = values.reshape(*lead, -1)[..., :columns]
    return values[..., np.argsort(stored["w.order"])] if format.act_order else values


def written(value: ex.Expression, source: Source, format: Format) -> dict[str, Array]:
    slot = writing.Slot("w", value, format, kept=True)
    layout = writing.plan_file([slot], source.tensors)
    with tempfile.TemporaryDirectory() as folder:
        writing.write(layout, source, Path(folder, "w"))
        return load_file(Path(folder, "w"))


@settings(max_examples=example_count(150))
@given(st.data())
def test_kept_integers_are_those_of_the_checkpoint(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    columns = data.draw(st.integers(1, 200) | st.sampled_from([256, 512, 1024]))
    group = min(data.draw(st.sampled_from([8, 16, 24, 32, 48, 64, 96, 128, 256, 512])), columns)
    group = columns if data.draw(st.booleans()) else group
    bits, rows = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 12))
    kinds = st.fixed_dictionaries(dict.fromkeys(("zeros", "offsets", "ordered"), st.booleans()))
    kind = data.draw(kinds)
    how = data.draw(
        st.sampled_from(
            ["one", "rows", "concat", "stack", "item", "expert", "interleaved", "columns"]
        )
    )
    lead = {"item": (3,), "expert": (3,), "interleaved": (2,)}.get(how, ())
    count = {"concat": 2, "stack": 3}.get(how, 1)
    source = Source(
        {
            name: in_memory(random, (*lead, 2 * rows, columns), bits, group, **kind)
            for name in "abc"[:count]
        }
    )
    value: ex.Expression = {
        "one": "a",
        "rows": ex.cut(0, 1, rows + 1, "a"),
        "concat": ex.concat(0, *"abc"[:count]),
        "stack": ex.stack(0, *"abc"[:count]),
        "item": ex.index(1, "a"),
        "expert": ex.cut(1, 0, rows, "a"),
        "interleaved": interleaved("a", 2, rows, columns),
        "columns": ex.cut(1, 0, max(1, columns // 2), "a"),
    }[how]

    format, kept = Storage(FLOAT32, source.encoded).of("w", value, lambda _: True)

    block = next((size for size in (256, 128, 64, 32, 16) if group % size == 0), None)
    whole = group == columns
    # Blocks that groups are whole numbers of, and rows too: sums by blocks need that.
    even = [size for size in (256, 128, 64, 32, 16) if not (group % size or columns % size)]
    can = (
        (block is not None or whole)
        and not (kind["ordered"] and count > 1)
        and not (kind["offsets"] and not even)
        and how != "columns"
    )
    assert kept == can
    if not kept:
        assert format == FLOAT32
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_BLOCK", data.draw(st.sampled_from([1, 300, 1 << 18])))
        stored = written(value, source, format)
    found = as_the_kernel_reads(stored, columns, format)
    expected = ex.rows(value, source.read, source.tensors)
    if kind["offsets"]:  # zero points and offsets are one number
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    else:
        assert np.array_equal(found, expected)


def interleaved(name: str, count: int, inner: int, columns: int) -> ex.Expression:
    """Interleave the rows of gates and ups, as experts have them."""
    experts = []
    for number in range(count):
        both = ex.index(number, name)
        gate, up = (ex.cut(0, start, start + inner, both) for start in (0, inner))
        experts.append(ex.reshape((2 * inner, columns), ex.stack(1, gate, up)))
    return ex.stack(0, *experts)


@pytest.mark.parametrize(
    ("bits", "columns", "group", "kind"),
    [
        (2, 96, 16, {"zeros": True}),
        (3, 96, 32, {}),
        (4, 100, 100, {"zeros": True}),
        (4, 200, 48, {}),
        (5, 64, 64, {"zeros": True}),
        (8, 256, 256, {}),
    ],
    ids=str,
)
def test_the_kernel_multiplies_by_them(
    bits: int, columns: int, group: int, kind: dict[str, bool]
) -> None:
    source = Source({"a": in_memory(np.random.default_rng(0), (24, columns), bits, group, **kind)})
    format, kept = Storage(FLOAT32, source.encoded).of("w", "a", lambda _: True)
    assert kept
    stored = written("a", source, format)
    node = helper.make_node(
        *("MatMulNBits", ["x", "w", "w.scales"]),
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=24,
        bits=format.bits,
        block_size=format.block,
        accuracy_level=0,
    )
    if format.zero_points:
        node.input.append("w.zero_points")
    initializers = [
        helper.make_tensor(
            name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape, one.tobytes(), raw=True
        )
        for name, one in stored.items()
        if name in node.input
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": np.eye(columns, dtype=np.float32)})
    assert np.array_equal(found.T, source.read("a"))


def test_a_transposed_matrix_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, names, calls = np.random.default_rng(0), ("a", "b", "c"), []
    source = Source({name: in_memory(random, (64, 32), 4, 32) for name in names})
    read = source.read

    def counted(name: str, start: int | None, stop: int | None) -> Array:
        calls.append((name, start, stop))
        return read(name, start, stop)

    monkeypatch.setattr(source, "read", counted)
    monkeypatch.setattr(writing, "_BLOCK", 128)
    turned = ex.stack(0, *(ex.transpose(0, 1, name) for name in names[:2]))
    slots = [writing.Slot("stack", turned), writing.Slot("rows", "c")]
    writing.write(writing.plan_file(slots, source.tensors), source, tmp_path / "file")
    assert [call for call in calls if call[0] != "c"] == [("a", None, None), ("b", None, None)]
    assert len(calls) == 2 + 16
    written = load_file(tmp_path / "file")
    assert np.array_equal(written["stack"], np.stack([read("a").T, read("b").T]))
    assert np.array_equal(written["rows"], read("c"))


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_a_large_matrix_is_written_in_little_memory(tmp_path: Path, method: str) -> None:
    random = np.random.default_rng(0)
    rows, columns, groups = 4096, 11008, 86
    index = np.arange(columns, dtype=np.int32) // 128
    random.shuffle(index)
    shape = {"awq": (columns, rows // 8), "gptq": (columns // 8, rows)}[method]
    tensors = {
        "m.qweight": random.integers(-(1 << 31), 1 << 31, shape, np.int32),
        "m.qzeros": random.integers(-(1 << 31), 1 << 31, (groups, rows // 8), np.int32),
        "m.scales": random.random((groups, rows), np.float32).astype(np.float16),
        **({"m.g_idx": index} if method == "gptq" else {}),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    quantization = {"quant_method": method, "bits": 4, "group_size": 128}
    edit_json(tmp_path / "config.json", model_type="llama", quantization_config=quantization)
    checkpoint = open_checkpoint(str(tmp_path))
    storage = Storage(FLOAT32, checkpoint.encoded)
    format, kept = storage.of("m.weight", "m.weight", lambda _: True)
    assert (kept, format.act_order) == (True, method == "gptq")
    layout = writing.plan_file(
        [writing.Slot("m.weight", "m.weight", format, kept=True)], checkpoint.tensors
    )
    tracemalloc.start()
    try:
        writing.write(layout, checkpoint, tmp_path / "out")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000  # of 180 MB in float32


pytestmark = [pytest.mark.filterwarnings("ignore:.* stores matrices in "), pytest.mark.turns(2)]


def takes(format: Format) -> bool:
    """Take what target `ort` does."""
    return lowering._Lowering.takes(None, format)  # type: ignore[arg-type]


# --- whole models ---------------------------------------------------------------------------------
LENGTHS = (3, 17, 40)
INT4 = Format(bits=4, block=32, zero_points=True)
#: Ways to store a model's layers -> what matrices of Llama are then.
FORMATS = {
    "awq": INT4,
    "gptq": INT4,
    "gptq-ordered": Format(bits=4, block=32, zero_points=True, act_order=True),
    "gptq-3": INT4,
    "mlx": Format(bits=4, block=32, offsets=True),
    "compressed-tensors": Format(bits=4, block=32),
    "fp8": NEAREST,
    "bitsandbytes": NEAREST,
}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by integers in float32, so that only weights are rounded."""
    monkeypatch.setattr(lowering, "_ACCURACY_LEVEL", 0)


def build(source: Path, **choices: Any) -> Package:
    return qeff_zoo.build(source, validate=False, ctx_len=64, **choices)


def logits(package: Package) -> Array:
    """Give those of texts of several lengths."""
    decoder = Decoder(opened(package))
    tokens = np.random.default_rng(0).integers(3, 250, max(LENGTHS))
    return np.stack([decoder.prefill({0: Piece(tokens[:length], 0)})[0] for length in LENGTHS])


def assert_alike(one: Package, other: Package) -> None:
    found, expected = logits(one), logits(other)
    assert np.abs(found - expected).max() < 2e-5 * expected.std()


def ways(package: Package) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = package.manifest["programs"][0]["ways"]
    return {what: found[what] for what in ("experts", "weights") if what in found}


def numerics(package: Package) -> Numerics:
    return package.programs[0].numerics


def test_matrices_of_one_input_in_one_order_agree_with_hugging_face(
    models: Models, home: Path, tmp_path: Path
) -> None:
    floats = models.checkpoint("llama-16", "llama", head_dim=16)  # heads that the kernel takes
    package = qeff_zoo.build(quantize(floats, tmp_path / "c", "gptq-ordered-alike"), ctx_len=64)
    assert package.validated == "checkpoint"
    assert numerics(package).matrices[0].format.act_order


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.sampled(3)
def test_layers_are_kept_or_rounded_to_the_nearest(
    models: Models, home: Path, tmp_path: Path, exact: None, how: str
) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", how)
    package = build(source)
    rounded = FORMATS[how] is NEAREST

    assert ways(package) == {"weights": {"rounded" if rounded else "kept": 28}}
    assert {(one.format, one.kept) for one in numerics(package).matrices} == {
        (FORMATS[how], not rounded)
    }
    assert numerics(package).rounds == rounded  # else it computes with the checkpoint's numbers
    others = {"weights": "int8", "block_size": 32, "format": ("lm_head=fp32", "*embed*=fp32")}
    assert_alike(package, build(source, **(others if rounded else {"weights": "fp32"})))


EXPERTS = {
    "awq": {"experts": {"native": 4}, "weights": {"kept": 24}},
    "compressed-tensors": {"experts": {"native": 4}, "weights": {"kept": 24}},
    # The gates and ups of an expert have an order each.
    "gptq-ordered": {
        "experts": {"own_tokens:float32": 4},
        "weights": {"kept": 36, "decoded": 20},
    },
    "fp8": {"experts": {"native": 4}, "weights": {"rounded": 24}},
}


@pytest.mark.parametrize("how", EXPERTS)
@pytest.mark.sampled(2)
def test_experts_are_one_kernel_where_it_takes_them(
    models: Models, home: Path, tmp_path: Path, exact: None, how: str
) -> None:
    floats = models.checkpoint("mixtral", "mixtral")
    models.trace(floats, home)
    source = quantize(floats, tmp_path / "c", how)
    package = build(source)
    assert ways(package) == EXPERTS[how]
    if how != "fp8":
        assert_alike(package, build(source, weights="fp32"))


@pytest.mark.full
def test_experts_of_mxfp4_are_kept_in_8_bits(models: Models, home: Path, tmp_path: Path) -> None:
    floats = models.checkpoint("gpt_oss", "gpt_oss")
    models.trace(floats, home)
    package = qeff_zoo.build(random_mxfp4(floats, tmp_path / "c"), ctx_len=64)
    assert ways(package) == {"experts": {"native": 4}, "weights": {"kept": 8}}
    assert {one.format for one in numerics(package).matrices} == {Format(bits=8, block=32)}
    assert_validated(package)


def test_experts_with_minima_are_products(
    models: Models, home: Path, tmp_path: Path, exact: None
) -> None:
    floats = models.checkpoint("mixtral", "mixtral")
    models.trace(floats, home)
    file = write_gguf(tmp_path / "m.gguf", floats, {"_exps.weight": "Q4_1"})
    package = build(file, config_from=floats)
    assert ways(package) == {"experts": {"own_tokens:formats": 4}, "weights": {"kept": 40}}
    assert {one.format for one in numerics(package).matrices} == {
        Format(bits=4, block=32, offsets=True, scale="float16", origin=8)
    }
    assert_alike(package, build(file, config_from=floats, weights="fp32"))


def assert_validated(package: Package) -> None:
    checks = package.manifest["validation"]
    assert package.validated == "checkpoint"
    assert all(check["passed"] for check in checks)
    assert any(check["canary"]["failed"] for check in checks if check.get("canary"))
    exact = ("text", "settings", "weights")
    numbers = [check for check in checks if check["stage"] not in exact]
    assert all("dequantized" in check["against"]["dtype"] for check in numbers)


#: One of each family, with matrices of floats between those of integers.
@pytest.mark.parametrize(
    "how", ["awq", "gptq-ordered", "compressed-tensors", "fp8", "bitsandbytes", "mlx"]
)
@pytest.mark.sampled(3)
def test_a_package_agrees_with_hugging_face(
    models: Models, home: Path, tmp_path: Path, how: str
) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", how, plain=("0.mlp.down_proj", "k_proj"))
    package = qeff_zoo.build(source, ctx_len=64)
    assert_validated(package)
    assert sum(ways(package)["weights"].values()) == 28 - 5


def test_the_graph_is_that_of_the_float_model(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)

    def refuse(*_: Any) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(graphs, "trace", refuse)
    for how in ("awq", "fp8"):
        build(quantize(models.llama, tmp_path / how, how))
    assert len(kept(home, "graph")) == 1
    assert len(kept(home, "package")) == 2


# --- tables, tied and mixed -----------------------------------------------------------------------
def gguf_of_blocks(models: Models, tmp_path: Path, kinds: dict[str, str], **config: Any) -> Any:
    """Give a file of a model whose rows are blocks of K types, and the model of floats."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    name = "-".join(["wide", *config])
    floats = models.checkpoint(name, "llama", **sizes, **config)
    return write_gguf(tmp_path / "m.gguf", floats, kinds), floats


#: Types of GGUF -> bits that their integers are kept in; 0 for none.
GGUF_BITS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K", "Q3_K", "Q2_K"), 4),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), 2),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"), 8),
    **dict.fromkeys(("IQ2_XS", "IQ3_S"), 0),  # IQ1_S as well, which ggml takes 10 s to write
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q2_K"])
@pytest.mark.sampled(3)
def test_rows_of_integers_are_looked_up(
    models: Models, home: Path, tmp_path: Path, exact: None, kind: str, tied: bool
) -> None:
    config = {"tie_word_embeddings": True} if tied else {}
    file, floats = gguf_of_blocks(models, tmp_path, {"token_embd.weight": kind}, **config)
    models.trace(floats, home)
    package = build(file, config_from=floats)
    (table,) = numerics(package).matrices
    assert table.format.bits == {"Q4_K": 4, "Q6_K": 8, "Q2_K": 4}[kind]  # no kernel looks up 2 bits
    assert (table.gathered, table.multiplied) == (True, tied)
    assert (table.kept, table.format.offsets) == (True, kind != "Q6_K")
    assert ways(package)["weights"] == {"kept": 1}
    assert_alike(package, build(file, config_from=floats, weights="fp32"))


@pytest.mark.parametrize(("how", "tied"), [("gptq", False), ("awq", True)])
def test_a_quantized_head_is_used_whatever_the_config_ties(
    models: Models, home: Path, tmp_path: Path, how: str, tied: bool
) -> None:
    floats = models.checkpoint("llama-256", "llama", vocab_size=256)  # whole words of AWQ
    models.trace(floats, home)
    source = quantize(floats, tmp_path / "c", how, head=True)
    edit_json(source / "config.json", tie_word_embeddings=tied)
    own = (
        pytest.warns(UserWarning, match="'lm_head.weight' with own values")
        if tied
        else nullcontext()
    )
    with own:
        package = qeff_zoo.build(source, ctx_len=64)
    assert_validated(package)
    assert "lm_head.weight" in {one.name for one in numerics(package).matrices if one.kept}


def test_a_mixture_of_ggufs_types_agrees_with_hugging_face(
    models: Models, home: Path, tmp_path: Path
) -> None:
    kinds = {
        "attn_output.weight": "Q4_K",
        **{f"{n}.ffn_down.weight": "Q6_K" for n in (0, 2)},
        **{f"{n}.attn_v.weight": "Q6_K" for n in (1, 3)},
        "token_embd.weight": "Q6_K",
        "output.weight": "Q6_K",
        "norm.weight": "F32",
        "": "Q4_K",
    }
    file, floats = gguf_of_blocks(models, tmp_path, kinds)
    models.trace(floats, home)
    package = qeff_zoo.build(file, ctx_len=64, config_from=floats)
    assert_validated(package)
    found = [
        (one.format.bits, one.format.block, one.format.offsets)
        for one in numerics(package).matrices
    ]
    assert {*found} == {(4, 32, True), (8, 16, False)}
    assert found.count((8, 16, False)) == 6
    assert ways(package)["weights"] == {"kept": len(found)}
    graph = ir.load(package.path / "graph.onnx").graph
    less = [node for node in graph if node.op_type == "FusedMatMul" and "alpha" in node.attributes]
    means = Counter(node.inputs[0].producer().op_type for node in less if node.inputs[0])
    # One node averages the blocks. The last layer picks tokens first, and the axes of those are not known.
    assert means["AveragePool"] > 3 * means["Squeeze"]
    # Queries, keys and values are one product where all are Q4_K: in layers 0 and 2.
    offsets = [name for name in graph.initializers if ".super_offsets" in name]
    assert sum("+" in name for name in offsets) == 2
    assert len(offsets) == len(less)
    queries = [node.inputs[0] for node in graph if node.op_type == "GroupQueryAttention"]
    # Attention reads products less their offsets as it reads products: nothing is reshaped in between.
    assert {query.producer().op_type for query in queries if query} == {"Sub"}


def test_repeated_heads_answer_the_same(
    models: Models, home: Path, tmp_path: Path, exact: None
) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "gptq-ordered")
    plain, wide = build(source), build(source, kv_heads=4)
    assert [one.programs[0].states[0].axes[1] for one in (plain, wide)] == [2, 4]
    assert ways(wide) == ways(plain) == {"weights": {"kept": 28}}
    assert np.array_equal(logits(wide), logits(plain))


# --- choices --------------------------------------------------------------------------------------
def stored_as(package: Package) -> dict[str, str]:
    return {
        one.name: "w8a8" if one.format.per_channel else f"int{one.format.bits}"
        for one in numerics(package).matrices
        if not one.kept
    }


def test_patterns_choose_the_format_of_matrices(models: Models, home: Path, tmp_path: Path) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "awq")
    requested = ("*.1.*.down_proj=int8", "*.down_proj=int4", "*.2.self_attn.*=fp32", "lm_head=int8")
    package = build(source, format=requested)
    downs = {f"model.layers.{n}.mlp.down_proj.weight": "int4" for n in (0, 2, 3)}
    downs |= {"model.layers.1.mlp.down_proj.weight": "int8", "lm_head.weight": "int8"}
    assert stored_as(package) == downs
    assert ways(package)["weights"] == {"kept": 20, "rounded": 4, "decoded": 4}
    floats = build(models.llama, format=("*.down_proj=int8",))
    assert len(stored_as(floats)) == 4


@pytest.mark.parametrize("asked", [("*.sideways=int8",), ("*_proj=int8", "*.q_proj=int4")])
def test_a_pattern_that_no_matrix_fits_is_refused_before_weights_are_written(
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, ...],
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("weights are written")

    models.trace(models.llama, home)
    monkeypatch.setattr(writing, "write", refuse)
    with pytest.raises(CompileError, match="which no matrix fits") as caught:
        build(quantize(models.llama, tmp_path / "c", "awq"), format=asked)
    assert repr(asked[-1].partition("=")[0]) in str(caught.value)
    assert kept(home, "package") == []


@pytest.mark.parametrize(
    "asked", ["*.q_proj", "*.q_proj=int5", "*.q_proj=stored", "=", "int4", "=int4"]
)
def test_what_is_no_pattern_and_format_is_refused(models: Models, home: Path, asked: str) -> None:
    with pytest.raises(PlanError, match=r"expected PATTERN=fp32\|int8\|int4") as caught:
        build(models.llama, format=(asked,))
    assert repr(asked) in str(caught.value)


def test_rows_and_blocks_lie_in_one_package(models: Models, home: Path) -> None:
    """Each matrix has its left sides rounded as it is itself, which a comparison with Hugging Face shows."""
    models.trace(models.llama, home)
    requested = ("*.down_proj=int8", "lm_head=fp32")
    package = build(models.llama, weights="w8a8", format=requested, block_size=32)
    found = {one.name: one.format for one in numerics(package).matrices}
    assert "lm_head.weight" not in found
    for name, format in found.items():
        assert format == format_of("int8" if "down_proj" in name else "w8a8", 32)
    assert validate(package, models.llama, level="tiny", threads=1).failures == []


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "w8a8"])
def test_other_weights_round_anew(models: Models, home: Path, tmp_path: Path, weights: str) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "compressed-tensors")
    with pytest.warns() if weights == "int4" else nullcontext() as warned:
        package = build(source, weights=weights)
    again = [str(one.message) for one in warned or () if "rounds them again" in str(one.message)]
    assert len(again) == (weights == "int4")
    assert "weights" not in ways(package)
    expected = {"fp32": set(), "int4": {"int4", "int8"}}.get(weights, {weights})
    assert {*stored_as(package).values()} == expected
    assert not any(one.kept for one in numerics(package).matrices)


def test_bits_of_stored_values_include_scales(models: Models, tmp_path: Path) -> None:
    for number, (format, bits) in enumerate({"compressed-tensors": (4, 6), "fp8": (8, 9)}.items()):
        source = quantize(models.llama, tmp_path / str(number), format)
        found = open_checkpoint(str(source)).stored_bits
        assert found is not None
        assert bits[0] < found < bits[1]
    for kind, bits_of_kind in {"Q8_0": 8.5, "Q4_0": 4.5}.items():
        file = gguf_files.write(tmp_path / f"{kind}.gguf", models.llama, kind)
        opened = open_checkpoint(str(file), config_from=str(models.llama))
        assert opened.stored_bits == pytest.approx(bits_of_kind, abs=0.3)


def test_rows_of_integers_stay_what_they_are(models: Models, home: Path, tmp_path: Path) -> None:
    """Bit for bit, and so do products with them; what the checkpoint has in floats is rounded."""
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "w8a8")
    package = qeff_zoo.build(source, weights="w8a8", ctx_len=64)
    assert_validated(package)
    assert ways(package) == {"weights": {"kept": 28}}
    stay = {one.name for one in numerics(package).matrices if one.kept}
    assert {one.format for one in numerics(package).matrices} == {format_of("w8a8")}
    tensors = load_file(source / "model.safetensors")
    written = load_file(package.file("weights"))
    for name in stay:
        assert np.array_equal(written[name], tensors[name])
        assert np.array_equal(written[f"{name}.scales"], tensors[f"{name}_scale"][:, 0])
    assert any((tensors[name] == -128).any() for name in stay)
    assert len(stay) == 28


def test_an_adapter_is_merged_into_rows_of_integers(
    models: Models, home: Path, tmp_path: Path
) -> None:
    """They are decoded before, and rounded after."""
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "w8a8")
    adapter = peft_adapters.write(
        tmp_path / "a", peft_adapters.load(models.llama), target_modules=["q_proj"]
    )
    package = build(source, weights="w8a8", adapter=(str(adapter),))
    changed = {one.name for one in numerics(package).matrices if not one.kept}
    assert {name for name in changed if ".layers." in name} == {
        f"model.layers.{number}.self_attn.q_proj.weight" for number in range(4)
    }


def test_floats_are_not_stored(models: Models, home: Path) -> None:
    with pytest.raises(PlanError, match="--weights is 'stored', but 'llama' is not quantized"):
        build(models.llama, weights="stored")


def test_an_unknown_method_is_refused_before_weights_are_needed(
    models: Models, home: Path, tmp_path: Path
) -> None:
    source = models.copy(models.llama, tmp_path / "c")
    (source / "model.safetensors").write_bytes(b"none")
    for method, output in (("quip", "Use the unquantized"), ("nobodys", "Use another checkpoint")):
        edit_json(source / "config.json", quantization_config={"quant_method": method})
        with pytest.raises(PlanError, match=f"quantized with '{method}'.*{output}"):
            build(source)


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_scales_that_are_no_numbers_are_refused_before_anything_is_traced(
    models: Models, home: Path, tmp_path: Path, value: float
) -> None:
    source = quantize(models.llama, tmp_path / "c", "compressed-tensors")
    file = source / "model.safetensors"
    tensors = {name: one.copy() for name, one in load_file(file).items()}
    tensors["model.layers.3.mlp.up_proj.weight_scale"][5, 1] = value
    file.unlink()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"layers\.3\.mlp\.up_proj\.weight_scale"):
        build(source)
    assert kept(home) == []


def test_plan_and_inspect_print_storage_of_matrices(
    models: Models, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.trace(models.llama, home)
    source = quantize(models.llama, tmp_path / "c", "awq", plain=("q_proj",))
    assert main(["plan", str(source), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert fields["quantization.weights"] == {"value": "stored", "by": "checkpoint"}

    package = build(source, format=("*.up_proj=int8",))
    assert main(["inspect", str(package.path)]) == 0
    printed_text = " ".join(capsys.readouterr().out.split())
    assert "weights stored (the checkpoint: awq)" in printed_text
    assert "int4 in blocks of 32, zero points as it is 20 int8 and float32" in printed_text
    assert "int8 in blocks of 64 rounded 4 int8 and float32" in printed_text
    assert "weights: 20 as the checkpoint stores them; 4 rounded to int8" in printed_text


def test_a_choice_of_activations_is_refused(
    models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(models.llama), "--activations", "int8"]) == 1
    assert "--activations is 'int8', but how activations are rounded" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "bits"), GGUF_BITS.items())
@pytest.mark.sampled(4)
def test_blocks_of_gguf_are_kept(models: Models, tmp_path: Path, name: str, bits: int) -> None:
    file, floats = gguf_of_blocks(models, tmp_path, {"0.ffn_up.weight": name})
    checkpoint = open_checkpoint(str(file), config_from=str(floats))
    (tensor,) = checkpoint.encoded
    format, kept = Storage(FLOAT32, checkpoint.encoded).of(tensor, tensor, takes)
    assert (format.bits, kept) == (bits or 8, bits > 0)
    assert format.offsets == (name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"))
    message = (ROOT / "docs" / "gguf.md").read_text(encoding="utf-8")
    assert name.partition("_")[0] in message.partition("## Storage in the package")[2]


# --- what is said of it ---------------------------------------------------------------------------
def genuine_within(floats: Path, folder: Path, name: str) -> Path:
    """Write a checkpoint of floats but for one matrix, which is a genuine quantized one."""
    tensors = load_file(floats / "model.safetensors")
    del tensors[MATRIX]
    shutil.copytree(floats, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, folder / "floats.safetensors")
    genuine = shutil.copy(GENUINE / name / "model.safetensors", folder / "genuine.safetensors")
    if name == "mlx-4":  # which has fewer rows than the model
        parts = torch_safetensors.load_file(genuine)
        rows = len(tensors["model.layers.0.self_attn.v_proj.weight"])
        torch_safetensors.save_file(
            {key: part.repeat(rows // len(part), 1) for key, part in parts.items()}, genuine
        )
    places = dict.fromkeys(tensors, "floats.safetensors")
    places |= dict.fromkeys(index_tensors([Path(genuine)]), "genuine.safetensors")
    edit_json(folder / "model.safetensors.index.json", weight_map=places)
    described = json.loads((GENUINE / name / "config.json").read_bytes())
    # mlx has it under another name, too, by which its checkpoints are recognized.
    how = {key: one for key, one in described.items() if key.startswith("quantization")}
    edit_json(folder / "config.json", **how)
    return folder


#: A genuine checkpoint of each method.
OF_EACH = (
    *("awq-g128", "gptq-4-g128-act", "ar-auto-4", "ct-w4a16", "fp8-block", "bnb-nf4"),
    *("torchao-int8", "hqq-4", "bitnet", "modelopt-nvfp4", "mlx-4"),
)


@pytest.mark.full
def test_the_guides_list_the_formats_of_packages(
    models: Models, home: Path, tmp_path: Path
) -> None:
    """A package is built of a genuine matrix of each method, of every type of GGUF, and of GPT-OSS's experts."""
    gpt_oss = models.checkpoint("gpt_oss", "gpt_oss")
    types = [name for name, _, _ in TYPES.values() if name.startswith(("Q", "IQ", "TQ", "MX"))]
    places = [f"{n}.{part}.weight" for n in range(4) for part in ("ffn_up", "ffn_gate", "ffn_down")]
    sources: list[tuple[Path, dict[str, Any]]] = []
    for number in range(0, len(types), len(places)):
        (folder := tmp_path / f"gguf-{number}").mkdir()
        kinds = dict(zip(places, types[number:], strict=False))
        file, floats = gguf_of_blocks(models, folder, kinds)
        sources.append((file, {"config_from": str(floats)}))
    sources.append((random_mxfp4(gpt_oss, tmp_path / "gpt-oss"), {}))
    sources += [(genuine_within(floats, tmp_path / name, name), {}) for name in OF_EACH]
    for one in (floats, gpt_oss):
        models.trace(one, home)
    found: dict[tuple[str, str], set[str]] = {}
    for source, options in sources:
        checkpoint = open_checkpoint(str(source), **options)
        for matrix in numerics(build(source, **options)).matrices:
            (stored, *_) = ex.sources_of(checkpoint.values.get(matrix.name, matrix.name))
            in_gguf = checkpoint.method == "gguf"
            about = checkpoint.stored[stored].dtype if in_gguf else checkpoint.encoded[stored].about
            words = matrix.format.in_words + ("" if matrix.kept else ", rounded")
            found.setdefault((checkpoint.method, words), set()).add(about)
    rows = {
        f"| `{how}` | {', '.join(sorted(of))} | {words} |" for (how, words), of in found.items()
    }
    docs = ROOT / "docs"
    guides = (
        (docs / f"{name}.md").read_text(encoding="utf-8") for name in ("quantization", "gguf")
    )
    message = {line for text in guides for line in text.splitlines() if line.startswith("| `")}
    assert sorted(rows - message) == []
    assert sorted(row for row in message - rows if row.startswith("| `gguf`")) == []
    assert {method for method, _ in found} == {*METHODS} - ALIASES


def test_the_documentation_lists_storage_of_genuine_matrices() -> None:
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    rows = {line for line in text.splitlines() if line.startswith("| `")}
    found = set()
    for name in GOLDENS:
        checkpoint = open_checkpoint(str(GENUINE / name))
        storage = Storage(FLOAT32, checkpoint.encoded)
        for tensor, encoded in checkpoint.encoded.items():
            format, kept = storage.of(tensor, tensor, takes)
            words = format.in_words if kept else f"{format.in_words}, rounded"
            found.add(f"| `{checkpoint.method}` | {encoded.about} | {words} |")
    assert "\n".join(sorted(found)) == "\n".join(sorted(rows))
    assert {row.split("`")[1] for row in rows} == {*METHODS} - {"gguf"} - ALIASES
    assert "[gguf.md](gguf.md)" in text
