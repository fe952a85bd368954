# SPDX-License-Identifier: Apache-2.0
"""GGUF as input: blocks as ggml decodes them, float tensors under Hugging Face's names, packages of them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkout import ROOT
from fixtures_builds import Models
from gguf_files import Array, dequantize, original, quantize, stored, write

import qeff_zoo
from qeff_zoo.checkpoint.encoded import Encoded, Stored
from qeff_zoo.checkpoint.expressions import rows, shape_of
from qeff_zoo.checkpoint.formats import gguf as decoders
from qeff_zoo.checkpoint.gguf.index import TYPES
from qeff_zoo.checkpoint.gguf.names import layouts
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.errors import CheckpointError, ZooError
from qeff_zoo.graph.external_data import WEIGHTS
from qeff_zoo.hub.resolve import resolve
from qeff_zoo.registry import find_recipe
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(2)

PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
BLOCKS = [name for name, _, _ in TYPES.values() if name not in PLAIN]


def values_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Read every tensor by its name in the float model."""
    found = {}
    for name in checkpoint.logical:
        e = checkpoint.values.get(name, name)
        found[name] = rows(e, checkpoint.read, checkpoint.tensors)
        assert found[name].shape == shape_of(e, checkpoint.tensors)
    return found


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ZooError) as caught:
        open_checkpoint(*arguments, **options)
    return str(caught.value)


# --- blocks -------------------------------------------------------------------------------------
def encoded(raw: Array, name: str) -> tuple[Encoded, Stored]:
    block = next(block for known, block, _ in TYPES.values() if known == name)
    nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    shape = (len(raw), raw.shape[1] // nbytes * block)
    info = TensorInfo("w", name, shape, Path("w"), 0, raw.size)
    source = Stored(
        name="m",
        config={"quant_method": "gguf"},
        tensors={"w": info},
        read=lambda _, start, stop: raw[start:stop],
    )
    return decoders._blocks(source, "w", None), source


def test_types_are_those_of_ggml() -> None:
    known = {
        int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType
    }
    assert {number: known[number] for number in TYPES} == dict(TYPES)


@pytest.mark.parametrize("name", BLOCKS)
def test_any_blocks_are_decoded_as_ggml_and_gguf_py_do(name: str) -> None:
    nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    raw = np.random.default_rng(5).integers(0, 256, (300, 2 * nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        by_ggml = dequantize(raw, name)
        whole = np.isfinite(by_ggml).all(1)  # others have scales that are no numbers
        by_gguf_py = gguf.quants.dequantize(raw[whole], gguf.GGMLQuantizationType[name])
    raw, by_ggml = raw[whole], by_ggml[whole]
    assert len(raw) > 200
    one, source = encoded(raw, name)
    decoded = one.values(source.read, 0, len(raw))
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded.view(np.uint32), by_gguf_py.view(np.uint32))
    assert np.array_equal(decoded.view(np.uint32), by_ggml.view(np.uint32))
    assert np.array_equal(one.values(source.read, 7, 19), decoded[7:19])


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.sampled(6)
def test_tensors_quantized_by_ggml_are_near(name: str) -> None:
    matrix = np.random.default_rng(6).standard_normal((2, 512)).astype(np.float32)
    one, source = encoded(quantize(matrix, name), name)
    error = one.values(source.read, 0, 2) - matrix
    worst = 0.9 if name[:3] in ("IQ1", "TQ1", "TQ2") else 0.5
    assert np.sqrt((error**2).mean()) < worst


def test_scales_that_are_no_numbers_are_refused() -> None:
    raw = np.zeros((1, 18), np.uint8)
    raw[:, :2] = np.array([np.inf], np.float16).view(np.uint8)
    one, source = encoded(raw, "Q4_0")
    with pytest.raises(CheckpointError, match="infinite or no numbers"):
        one.values(source.read, 0, 1)


# --- names and arrangement ----------------------------------------------------------------------
def tiny(models: Models, model_type: str, **config: Any) -> Path:
    if model_type in ("qwen2_moe", "qwen3_moe", "qwen3_next"):
        # llama.cpp has no files with other layers, and blocks have 32 columns.
        config |= {"mlp_only_layers": [], "moe_intermediate_size": 64}
    if model_type == "falcon_h1":  # whose multipliers converters apply
        config |= dict.fromkeys(layouts()[model_type].multiplied, 1.0)
        config |= {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}
    if model_type == "gemma3n_text":  # whose files have keys and values of all layers
        config |= {"num_kv_shared_layers": 0}
    return models.checkpoint(f"gguf-{model_type}", model_type, **config)


@pytest.mark.parametrize("model_type", sorted(layouts()))
def test_a_file_of_floats_gives_the_original_tensors(
    models: Models, tmp_path: Path, model_type: str
) -> None:
    folder = tiny(models, find_recipe(model_type).model_type)
    file = write(tmp_path / "model.gguf", folder)

    checkpoint = open_checkpoint(str(file), config_from=str(folder))

    expected = original(folder)
    if (
        model_type == "kimi_linear"
    ):  # transformers reads both names of dense layers, and saves that of experts
        dense = re.compile(r"block_sparse_moe(?=\.(down|gate|up)_proj)")
        expected = {dense.sub("mlp", name): value for name, value in expected.items()}
    found = values_of(checkpoint)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        plus_one = layouts()[model_type].plus_one and "linear_attn.norm" not in name
        if plus_one and name.endswith("norm.weight"):
            value = (value + np.float32(1)) - np.float32(1)
        if name.endswith("A_log"):
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7)
            continue
        assert np.array_equal(found[name], value), name
    assert checkpoint.method == "gguf"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "IQ4_NL", "F16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma2", "qwen3_moe"])
def test_quantized_tensors_are_the_original_ones_rounded(
    models: Models, tmp_path: Path, model_type: str, kind: str
) -> None:
    folder = tiny(models, model_type)
    file = write(tmp_path / "model.gguf", folder, kind)

    found = values_of(open_checkpoint(str(file), config_from=str(folder)))

    for name, value in original(folder).items():
        if value.ndim == 2:
            raw = quantize(value, kind)
            # Rows are rounded one by one, so that their order does not matter.
            rounded = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
            assert np.array_equal(found[name].astype(np.float32), rounded), name


def test_rows_of_a_permuted_and_quantized_tensor_are_read_alone(
    models: Models, tmp_path: Path
) -> None:
    folder = tiny(models, "llama")
    file = write(tmp_path / "model.gguf", folder, "Q5_0")
    checkpoint = open_checkpoint(str(file), config_from=str(folder))
    name = "model.layers.1.self_attn.k_proj.weight"
    assert checkpoint.encoded[checkpoint.values[name][2][3][2]].integers is not None

    e, read = checkpoint.values[name], checkpoint.read
    whole = rows(e, read, checkpoint.tensors)
    assert np.array_equal(rows(e, read, checkpoint.tensors, 5, 31), whole[5:31])


def test_types_are_mixed_and_the_head_is_tied(models: Models, tmp_path: Path) -> None:
    folder = models.tied
    file = write(
        tmp_path / "model.gguf",
        folder,
        {"ffn_down.weight": "Q5_1", "_k.weight": "Q8_0"},
    )
    checkpoint = open_checkpoint(str(file), config_from=str(folder))
    kinds = {info.dtype for info in checkpoint.stored.values()}
    assert kinds == {"F32", "Q5_1", "Q8_0"}
    assert "lm_head.weight" not in checkpoint.logical


def test_a_tensor_without_a_place_is_named(models: Models, tmp_path: Path) -> None:
    folder = tiny(models, "llama")
    extra = {"blk.0.surprise.weight": np.ones((4, 4)), "blk.99.attn_q.weight": np.ones((4, 4))}
    file = write(tmp_path / "model.gguf", folder, extra=extra)
    message = refusal(str(file), config_from=str(folder))
    assert "2 tensors" in message
    assert "'blk.0.surprise.weight'" in message
    assert "'blk.99.attn_q.weight'" in message


def test_factors_of_rope_need_a_scaling_in_the_configuration(
    models: Models, tmp_path: Path
) -> None:
    extra = {"rope_freqs.weight": np.ones(12)}
    scaled = tiny(models, "llama")  # its RoPE is llama3's
    file = write(tmp_path / "model.gguf", scaled, extra=extra)
    assert "rope_freqs.weight" not in open_checkpoint(str(file), config_from=str(scaled)).values

    plain = models.copy(scaled, tmp_path / "plain")
    config = json.loads((plain / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0}
    (plain / "config.json").write_text(json.dumps(config))
    assert "factors of RoPE" in refusal(str(file), config_from=str(plain))


def test_the_original_must_be_of_the_same_architecture(models: Models, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", tiny(models, "llama"))
    message = refusal(str(file), config_from=str(tiny(models, "qwen2")))
    assert "architecture 'llama'" in message
    assert "'qwen2'" in message


def test_models_and_files_that_cannot_be_read_are_refused_by_name(
    models: Models, tmp_path: Path
) -> None:
    folder = tiny(models, "llama")
    projector = write(tmp_path / "mmproj.gguf", folder, general__type="mmproj")
    for options in ({"config_from": str(folder)}, {}):
        message = refusal(str(projector), **options)
        assert "of type 'mmproj', a vision or audio projector" in message
        assert "for images build the checkpoint of safetensors" in message
    adapter = write(tmp_path / "lora.gguf", folder, general__type="adapter")
    assert "of type 'adapter'" in refusal(str(adapter), config_from=str(folder))
    file = write(tmp_path / "model.gguf", folder)
    bert = tmp_path / "bert.json"
    bert.write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    assert "model_type 'bert'" in refusal(str(file), config_from=str(bert))


# --- where files are ----------------------------------------------------------------------------
def test_a_file_in_a_folder_by_its_name_and_the_config_beside_it(
    models: Models, tmp_path: Path
) -> None:
    folder = models.copy(tiny(models, "llama"), tmp_path / "both")
    write(folder / "model-Q8_0.gguf", folder, "Q8_0")

    checkpoint = open_checkpoint(str(folder), gguf_file="model-Q8_0.gguf")

    assert checkpoint.weight_files == ("model-Q8_0.gguf",)
    assert checkpoint.method == "gguf"
    assert open_checkpoint(str(folder)).method == "none"
    assert "No GGUF file other.gguf" in refusal(str(folder), gguf_file="other.gguf")
    assert "No GGUF file" in refusal(str(folder), gguf_file="../both/model-Q8_0.gguf")
    assert "--config-from" in refusal(str(folder), config_from=str(folder))
    assert "No GGUF file gone.gguf" in refusal("gone.gguf")


def test_a_split_checkpoint_is_read_whole(models: Models, tmp_path: Path) -> None:
    folder = tiny(models, "llama")
    parts = split(folder, tmp_path, 3)

    checkpoint = open_checkpoint(str(parts[1]), config_from=str(folder))

    assert checkpoint.weight_files == tuple(part.name for part in parts)
    expected = original(folder)
    found = values_of(checkpoint)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    parts[2].unlink()
    assert parts[2].name in refusal(str(parts[0]), config_from=str(folder))
    shutil.copyfile(parts[1], parts[2])
    assert "says that it is file 1 (from 0) of 3" in refusal(str(parts[0]), config_from=str(folder))


def split(folder: Path, target: Path, count: int) -> list[Path]:
    tensors = list(stored(folder).items())
    config = json.loads((folder / "config.json").read_text())
    paths = [target / f"model-{n + 1:05d}-of-{count:05d}.gguf" for n in range(count)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(tensors))
        for name, value in tensors[number::count]:
            writer.add_tensor(name, np.ascontiguousarray(value))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


# --- configuration and tokenizer from the file --------------------------------------------------
EXAMPLE = ROOT / "examples" / "tiny-llama"


def test_without_an_original_the_file_describes_the_model(home: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    file = write(tmp_path / "model.gguf", EXAMPLE, "Q8_0", tokens=True)

    checkpoint = open_checkpoint(str(file))

    settings = json.loads((EXAMPLE / "config.json").read_text())
    same = ("hidden_size", "num_hidden_layers", "rms_norm_eps", "head_dim", "rope_parameters")
    assert all(checkpoint.config[key] == settings[key] for key in (*same, "tie_word_embeddings"))
    assert checkpoint.generation_config == {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    made = AutoTokenizer.from_pretrained(checkpoint.companions["tokenizer.json"].parent)
    own = AutoTokenizer.from_pretrained(EXAMPLE)
    text = "def f(x):\n    return 'naïve' + x"
    assert made.encode(text, add_special_tokens=False) == own.encode(text, add_special_tokens=False)
    assert checkpoint.companions_digest() == open_checkpoint(str(file)).companions_digest()
    assert list((home / "companions").iterdir())


@pytest.mark.parametrize(
    ("metadata", "extra", "named"),
    [
        ({"llama__rope__scaling__type": "spiral"}, {}, "llama.rope.scaling.type"),
        ({"llama__logit_scale": 2.0}, {}, "llama.logit_scale"),
        ({}, {"rope_freqs.weight": np.linspace(1, 3, 16)}, "rope_freqs.weight"),
    ],
    ids=["scaling", "scale", "factors"],
)
def test_fields_missing_in_the_metadata_require_the_original(
    home: Path, tmp_path: Path, metadata: dict[str, Any], extra: dict[str, Array], named: str
) -> None:
    file = write(tmp_path / "model.gguf", EXAMPLE, tokens=True, extra=extra, **metadata)
    message = refusal(str(file))
    assert named in message
    assert "--config-from" in message


@pytest.mark.parametrize("begins", [True, False])
def test_texts_begin_by_the_fields_of_the_file(home: Path, tmp_path: Path, begins: bool) -> None:
    from transformers import AutoTokenizer

    settings = {"tokenizer__ggml__add_bos_token": begins}
    file = write(tmp_path / "model.gguf", EXAMPLE, tokens=True, **settings)
    made = open_checkpoint(str(file)).companions["tokenizer.json"].parent
    ids = AutoTokenizer.from_pretrained(made)("a")["input_ids"]
    assert (ids[0] == 0) is begins


# --- packages -----------------------------------------------------------------------------------
def test_a_package_of_a_file_of_floats_is_that_of_the_original(
    models: Models, home: Path, tmp_path: Path
) -> None:
    folder = models.llama
    models.trace(folder, home)
    file = write(tmp_path / "model.gguf", folder)

    made = [
        qeff_zoo.build(model, validate=False, weights="fp32", **options)
        for model, options in ((folder, {}), (file, {"config_from": folder}))
    ]

    weights = [(one.path / WEIGHTS).read_bytes() for one in made]
    assert weights[0] == weights[1]
    assert made[0].build_key != made[1].build_key
    assert Store().source(made[1].build_key) == file
    assert (made[1].path / "tokenizer.json").is_file()
    assert made[1].manifest["weights"]["gguf_file"] == file.name
    found = resolve(str(file), {"ctx_len": 32}, config_from=str(folder))
    assert found.here == made[1].path
    by_name = {"gguf_file": file.name, "config_from": str(folder)}
    assert resolve(str(file.parent), {"ctx_len": 32}, **by_name).here == made[1].path
    other = write(tmp_path / "other.gguf", folder, "Q8_0")
    assert resolve(str(other), {"ctx_len": 32}, config_from=str(folder)).verdict == "BUILD"
    session = [qeff_zoo.load(one, threads=1).generate(["a"], generation_len=4) for one in made]
    assert session[0][0].token_ids == session[1][0].token_ids


def test_the_command_line_takes_a_file(
    models: Models, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qeff_zoo.cli import main

    folder = models.copy(models.llama, tmp_path / "folder")
    write(folder / "model.gguf", folder, "Q4_0")
    named = [str(folder), "--gguf-file", "model.gguf", "--config-from", str(models.llama)]
    assert main(["plan", *named, "--json"]) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    expected = open_checkpoint(str(folder), gguf_file="model.gguf").weights_digest()
    assert spec["sources"]["model"]["weights"] == expected
    assert main(["resolve", *named, "--json"]) == 10  # there is none, and one can be built
    assert json.loads(capsys.readouterr().out)["verdict"] == "BUILD"
    named[2] = "other.gguf"
    assert main(["resolve", *named]) == 1
    assert "No GGUF file other.gguf" in capsys.readouterr().err


def test_a_file_is_named_by_its_quantization(models: Models, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"):
        write(folder / name, EXAMPLE, "Q8_0", tokens=True)
    assert open_checkpoint(str(folder), gguf_file="q8_0").gguf == "m-Q8_0.gguf"
    several = refusal(str(folder))
    assert "m-Q4_0.gguf, m-Q8_0.gguf" in several
    assert "--gguf-file" in several
    none = refusal(str(folder), gguf_file="Q4_K")
    assert "No GGUF files of quantization 'Q4_K'" in none
    assert "m-Q4_0.gguf, m-Q8_0.gguf" in none
    write(folder / "n.Q8_0.gguf", EXAMPLE, "Q8_0", tokens=True)
    assert "2 GGUF files of quantization 'Q8_0'" in refusal(str(folder), gguf_file="Q8_0")


def test_the_only_file_of_a_folder_needs_no_name(
    models: Models, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    file = write(folder / "m-Q8_0.gguf", EXAMPLE, "Q8_0", tokens=True)
    assert open_checkpoint(str(folder)).gguf == file.name
    assert open_checkpoint(str(folder), config_from=str(EXAMPLE)).config["model_type"] == "llama"
    shutil.copyfile(EXAMPLE / "config.json", folder / "config.json")
    assert open_checkpoint(str(folder)).companions.keys() == {"config.json"}
    made = qeff_zoo.build(folder, validate=False, ctx_len=32, prefill_seq_len=8)
    assert resolve(str(folder), {"ctx_len": 32}, gguf_file="Q8_0").here == made.path
