# SPDX-License-Identifier: Apache-2.0
"""The reference decodes quantized checkpoints by code of its own, to what packages are built of and others read."""

import ast
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkout import TESTS
from fixtures_builds import Models
from runnable_package import edit_json
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import CheckpointError
from qeff_zoo.graph.numerics import Format, Numerics, RoundedMatrix
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation import ladder as validation
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.judgement.parity import Judge
from qeff_zoo.validation.reference import formats as reference_formats
from qeff_zoo.validation.reference.answers import Answers
from qeff_zoo.validation.reference.formats import open_weights
from qeff_zoo.validation.reference.formats.orders import by_parameter
from qeff_zoo.validation.reference.loading import decoded_weights, load_model
from qeff_zoo.validation.reference.numerics import Arithmetic, round_weights
from qeff_zoo.weights.writing import evaluate

FIXTURES = TESTS / "fixtures/quantized"
#: What the genuine quantizers made: a matrix each.
GENUINE = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))

#: Those of few bits, and how far they may be from what they were made of, in standard deviations.
LOSSES = {"bitnet": 0.6, "gptq-2-g64": 0.8, "gptq-3-g64": 0.35, "hqq-2": 0.6, "hqq-3": 0.3}
LOSSES |= {"mlx-2": 0.6, "mlx-3": 0.3}


def read(folder: Path) -> dict[str, Tensor]:
    """Decode all tensors of a checkpoint."""
    weights = decoded_weights(folder)
    assert weights is not None
    return {name: tensor[...] for name, tensor in weights.tensors.items()}


def written(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """Write a checkpoint of a few tensors."""
    folder.mkdir()
    text = {"model_type": "llama", "architectures": ["A"], "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(text))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def random(*shape: int, high: int = 256, dtype: torch.dtype = torch.uint8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- independence ---------------------------------------------------------------------------------
def test_the_decoders_share_nothing_with_those_of_packages() -> None:
    folder = Path(str(reference_formats.__file__)).parent
    names = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names.add(str(node.module))
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
    ours = {name for name in names if name.startswith("qeff_zoo")}
    assert ours
    assert all(name.startswith("qeff_zoo.validation.reference.formats") for name in ours)


def test_every_method_that_packages_read_is_one_that_the_reference_reads() -> None:
    known = {*reference_formats.METHODS, "gguf"}
    assert {method.replace("_", "-") for method in formats.METHODS} <= known


# --- genuine checkpoints --------------------------------------------------------------------------
@pytest.mark.parametrize("name", GENUINE)
def test_packages_are_built_of_what_the_reference_reads(name: str) -> None:
    checkpoint = open_checkpoint(str(FIXTURES / name))
    if checkpoint.quantization["quant_method"] not in formats.METHODS:
        pytest.skip("packages are not built of it yet")
    expected = read(FIXTURES / name)
    made = [name for name in checkpoint.logical if name in checkpoint.values]
    for tensor in made or checkpoint.encoded:
        found = evaluate(checkpoint.values.get(tensor, tensor), checkpoint)
        if name.startswith("hqq"):  # its zero points are fractions, which makes another product
            np.testing.assert_allclose(found, expected[tensor].numpy(), rtol=2e-6, atol=1e-7)
        else:
            assert np.array_equal(found, expected[tensor].numpy())
    assert checkpoint.encoded


@pytest.mark.parametrize("name", GENUINE)
def test_genuine_matrices_are_near_what_they_were_made_of(name: str) -> None:
    """All but GPT-OSS' are one matrix, whose 8-bit form is at hand: nothing is permuted, shifted or scaled."""
    if name == "gpt-oss-mxfp4":
        shapes = {key: tuple(value.shape) for key, value in read(FIXTURES / name).items()}
        assert shapes["model.layers.0.mlp.experts.down_proj"] == (4, 96, 64)
        return
    matrix = "model.layers.0.self_attn.k_proj.weight"
    found, original = (read(FIXTURES / one)[matrix] for one in (name, "ct-w8a16"))
    original = original[: len(found)]  # mlx's are of the first rows
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    loss = float((found - original).square().mean().sqrt() / original.std())
    assert loss < LOSSES.get(name, 0.16)


@pytest.mark.parametrize("name", ["modelopt-nvfp4", "modelopt-fp8-block"])
def test_modelopt_s_own_file_describes_a_checkpoint(name: str, tmp_path: Path) -> None:
    """Older releases write `hf_quant_config.json` alone; a method may be missing in config.json."""
    expected = read(FIXTURES / name)
    config = json.loads((FIXTURES / name / "config.json").read_bytes())
    quantization = config.pop("quantization_config")
    for beside in (True, False):
        folder = shutil.copytree(FIXTURES / name, tmp_path / str(beside))
        algorithm = {"quant_algo": quantization["quant_algo"]}
        own = {} if beside else {"quantization_config": algorithm}
        (folder / "config.json").write_text(json.dumps(config | own))
        if beside:
            text = {"producer": {"name": "modelopt"}, "quantization": algorithm}
            (folder / "hf_quant_config.json").write_text(json.dumps(text))
        checkpoint = open_checkpoint(str(folder))
        weights = decoded_weights(folder)
        assert weights is not None
        assert checkpoint.method == "modelopt"
        assert ("hf_quant_config.json" in checkpoint.companions) is beside
        assert checkpoint.encoded
        for tensor, value in expected.items():
            assert torch.equal(weights.tensors[tensor][...], value)
            assert np.array_equal(checkpoint.read(tensor), value.numpy())


@pytest.mark.parametrize("scales", [(), (1,), (4,), (4, 1, 1)], ids=str)
def test_stacks_of_modelopt_have_a_scale_or_one_each(
    scales: tuple[int, ...], tmp_path: Path
) -> None:
    floats = normal(4, 6, 8).to(torch.float8_e4m3fn)
    scale = normal(*scales).abs() + 0.5
    name = "model.layers.0.mlp.experts.gate_up_proj"
    folder = written(
        tmp_path / "c",
        {name: floats, f"{name}_weight_scale": scale, f"{name}_input_scale": torch.ones(())},
        quant_method="modelopt",
        quant_algo="FP8",
    )
    expected = floats.float() * (
        scale.reshape(-1, 1, 1) if scale.numel() > 1 else scale.reshape(())
    )
    assert torch.equal(read(folder)[name], expected)
    checkpoint = open_checkpoint(str(folder))
    assert np.array_equal(checkpoint.read(name), expected.numpy())
    assert np.array_equal(checkpoint.read(name, 1, 3), expected[1:3].numpy())
    assert [*checkpoint.tensors] == [name]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_SVD"}, "ModelOpt with 'NVFP4_SVD'"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT2"}}},
            "ModelOpt with 'INT2'",
        ),
        ({"bits": 1, "group_size": 64}, "mlx in mode 'affine', 1 bits in groups of 64"),
        ({"bits": 4, "group_size": 16, "mode": "mxfp4"}, "mode 'mxfp4', 4 bits in groups of 16"),
        (
            {"bits": 4, "group_size": 64, "lm_head": {"bits": 7, "group_size": 64}},
            "mode 'affine', 7 bits",
        ),
    ],
)
def test_the_tool_of_an_unreadable_checkpoint_is_named(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    own = {"quantization" if "bits" in config else "quantization_config": config}
    text = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **own}
    (tmp_path / "config.json").write_text(json.dumps(text))
    problem = formats.problem_of(open_checkpoint(str(tmp_path), need_weights=False).quantization)
    assert words in problem


def test_a_matrix_of_modelopt_without_a_scale_is_refused(tmp_path: Path) -> None:
    tensors = {"a.weight": random(4, 16), "b.weight": normal(4, 16).to(torch.float8_e4m3fn)}
    scale = {"b.weight_scale": torch.ones(())}
    folder = written(tmp_path / "c", tensors | scale, quant_method="modelopt", quant_algo="FP8")
    with pytest.raises(CheckpointError, match=r"tensor 'a\.weight' has no weight_scale"):
        _ = open_checkpoint(str(folder)).tensors


#: Tensors as mlx-lm names them, by model type -> names of transformers' checkpoints.
MLX_NAMES: dict[str, dict[str, list[str]]] = {
    "qwen3_moe": {"mlp.switch_mlp.up_proj": [f"mlp.experts.{n}.up_proj" for n in range(3)]},
    "mixtral": {"moe.switch_mlp.up_proj": [f"moe.experts.{n}.w3" for n in range(3)]},
    "dots1": {"mlp.experts.down_proj": [f"mlp.experts.{n}.down_proj" for n in range(3)]},
    "nemotron_h": {"mixer.switch_mlp.fc1": [f"mixer.experts.{n}.up_proj" for n in range(3)]},
    "lfm2_moe": {
        "a.feed_forward.gate_proj": ["a.feed_forward.w1"],
        "feed_forward.switch_mlp.gate_proj": [f"feed_forward.experts.{n}.w1" for n in range(3)],
        "conv.conv": ["conv.conv"],
    },
    "deepseek_v3": {"self_attn.embed_q": ["self_attn.kv_b_proj"], "self_attn.unembed_out": []},
    "laguna": {"mlp.gate.proj": ["mlp.gate"]},
    "qwen3_next": {
        "input_layernorm": ["input_layernorm"],
        "linear_attn.norm": ["linear_attn.norm"],
    },
}


@pytest.mark.parametrize("model_type", MLX_NAMES)
@pytest.mark.parametrize("bits", [4, 0], ids=["integers", "floats"])
def test_tensors_that_mlx_arranges_have_the_names_of_transformers(
    model_type: str, bits: int, tmp_path: Path
) -> None:
    prefix = "model.layers.1."
    tensors = {}
    for name in MLX_NAMES[model_type]:
        stacked = "switch" in name or "experts" in name or "embed" in name
        lead = (3,) if stacked else ()
        if "norm" in name:
            tensors[f"{prefix}{name}.weight"] = normal(8)
        elif "conv." in name or not bits:
            tensors[f"{prefix}{name}.weight"] = normal(*lead, 6, 32) if bits else normal(3, 8, 8)
        else:
            tensors[f"{prefix}{name}.weight"] = random(*lead, 32, 4, high=1 << 31).to(torch.uint32)
            for part in ("scales", "biases"):
                tensors[f"{prefix}{name}.{part}"] = normal(*lead, 32, 1)
    if model_type == "lfm2_moe":
        tensors[f"{prefix}conv.conv.weight"] = normal(6, 3, 1)
        tensors[f"{prefix}a.feed_forward.gate_proj.weight"] = normal(6, 8)
        for part in ("scales", "biases"):
            tensors.pop(f"{prefix}a.feed_forward.gate_proj.{part}", None)
    folder = written(tmp_path / "c", tensors)
    edit_json(folder / "config.json", model_type=model_type, quantization_config=None)
    edit_json(folder / "config.json", quantization={"bits": 4, "group_size": 32})
    checkpoint, expected = open_checkpoint(str(folder)), read(folder)
    names = [new for every in MLX_NAMES[model_type].values() for new in every]
    assert sorted(checkpoint.logical) == sorted(f"{prefix}{name}.weight" for name in names)
    assert sorted(expected) == sorted(checkpoint.logical)
    for name, values in expected.items():
        found = evaluate(checkpoint.values.get(name, name), checkpoint)
        assert checkpoint.logical[name].shape == found.shape
        assert np.array_equal(found, values.numpy())


# --- formats that no genuine matrix is at hand of ------------------------------------------------------
def test_the_zero_points_of_gptq_borrow_from_their_neighbours(tmp_path: Path) -> None:
    """A zero point of 0 is written as all ones less than a whole word: the next one is lower by one."""
    zeros = torch.arange(32) % 16
    words = zeros.reshape(4, 8) << torch.arange(0, 32, 4)
    stored = (words.sum(-1) - 0x11111111 & 0xFFFFFFFF).int()[None]
    tensors = {
        "a.qweight": torch.zeros(4, 32, dtype=torch.int32),
        "a.qzeros": stored,
        "a.scales": torch.ones(1, 32, dtype=torch.float16),
    }
    folder = written(tmp_path / "c", tensors, quant_method="gptq", bits=4, group_size=-1)
    assert torch.equal(read(folder)["a.weight"], -zeros.float()[:, None].expand(32, 32))
    new = written(
        tmp_path / "d",
        tensors,
        quant_method="gptq",
        bits=4,
        group_size=-1,
        checkpoint_format="gptq_v2",
    )
    assert not torch.equal(read(new)["a.weight"], read(folder)["a.weight"])


@pytest.mark.parametrize(
    ("packing", "same_as"),
    [
        ("auto_round:auto_gptq", {"quant_method": "gptq"}),
        ("auto_round:gptqmodel", {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}),
        ("auto_round", {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}),
        ("auto_round:auto_awq", {"quant_method": "awq"}),
    ],
)
def test_autoround_packs_as_others_do(
    tmp_path: Path, packing: str, same_as: dict[str, str]
) -> None:
    source = FIXTURES / ("ar-awq-4" if "awq" in packing else "ar-gptq-asym")
    for name, config in (
        ("one", {"quant_method": "auto-round", "packing_format": packing}),
        ("two", same_as),
    ):
        folder = shutil.copytree(source, tmp_path / name)
        edit_json(
            folder / "config.json",
            quantization_config={
                "bits": 4,
                "group_size": 32 if source.name == "ar-gptq-asym" else 128,
                **config,
            },
        )
    assert all(
        torch.equal(one, two)
        for one, two in zip(
            read(tmp_path / "one").values(), read(tmp_path / "two").values(), strict=True
        )
    )


@pytest.mark.parametrize("name", ["ct-w4a16-asym", "gptq-4-g128-act"])
def test_columns_of_any_order_have_the_scale_of_their_group(tmp_path: Path, name: str) -> None:
    """A matrix whose columns are moved, and the groups of its columns with them."""
    folder = shutil.copytree(FIXTURES / name, tmp_path / "c")
    tensors = load_file(folder / "model.safetensors")
    path = "model.layers.0.self_attn.k_proj"
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    if name.startswith("gptq"):
        before = read(folder)[f"{path}.weight"]
        index = tensors[f"{path}.g_idx"]
        assert not torch.equal(index, index.sort().values)
        scales, (found,) = (
            tensors[f"{path}.scales"],
            open_weights(
                folder, json.loads((folder / "config.json").read_bytes())["quantization_config"]
            ).orders.values(),
        )
        assert torch.equal(index[found], index.sort().values)
        steps = before[:, found].unflatten(-1, (2, 128)) / scales.T[..., None].float()
        torch.testing.assert_close(steps, steps.round(), rtol=0, atol=2e-3)
        return
    before = read(folder)[f"{path}.weight"]
    packed = tensors[f"{path}.weight_packed"]
    nibbles = (packed[..., None] >> torch.arange(0, 32, 4) & 15).flatten(1)[:, order]
    words = (nibbles.long().unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)).sum(-1).int()
    index = (torch.arange(256) // 128)[order].int()
    tensors |= {f"{path}.weight_packed": words, f"{path}.weight_g_idx": index}
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(read(folder)[f"{path}.weight"], before[:, order])


@pytest.mark.parametrize(
    ("shape", "scale", "block"),
    [((192, 256), (2, 2), [128, 128]), ((64, 64), (1, 1), [128, 128]), ((96, 64), (), None)],
    ids=["ragged", "smaller than a block", "one scale"],
)
def test_scales_of_fp8_are_those_of_blocks(
    tmp_path: Path, shape: tuple[int, ...], scale: tuple[int, ...], block: list[int] | None
) -> None:
    weight, scales = normal(*shape).to(torch.float8_e4m3fn), normal(*scale, seed=1).abs()
    folder = written(
        tmp_path / "c",
        {"a.weight": weight, "a.weight_scale_inv": scales, "a.activation_scale": torch.ones(())},
        quant_method="fp8",
        weight_block_size=block,
    )
    expected = weight.float()
    for row in range(shape[0]):
        for first in range(0, shape[1], 128):
            one = scales[row // 128, first // 128] if block else scales
            expected[row, first : first + 128] *= one
    assert read(folder).keys() == {"a.weight"}
    assert torch.equal(read(folder)["a.weight"], expected)


def test_scales_of_fp8_that_do_not_divide_a_matrix_are_refused(tmp_path: Path) -> None:
    tensors = {
        "a.weight": normal(192, 256).to(torch.float8_e4m3fn),
        "a.weight_scale_inv": normal(5, 2),
    }
    folder = written(tmp_path / "c", tensors, quant_method="fp8", weight_block_size=[128, 128])
    with pytest.raises(ValueError, match="5 scales are not those of 192"):
        read(folder)


def test_fbgemm_has_a_scale_for_every_output(tmp_path: Path) -> None:
    weight, experts = (normal(*one).to(torch.float8_e4m3fn) for one in ((8, 16), (2, 16, 8)))
    tensors = {
        "a.weight": weight,
        "a.weight_scale": normal(8, 1).abs(),
        "a.input_scale_ub": torch.ones(1),
        "e.down_proj": experts,
        "e.down_proj_scale": normal(2, 8, 1, seed=1).abs(),
    }
    found = read(written(tmp_path / "c", tensors, quant_method="fbgemm_fp8"))
    assert found.keys() == {"a.weight", "e.down_proj"}
    assert torch.equal(found["a.weight"], weight.float() * tensors["a.weight_scale"])
    assert torch.equal(found["e.down_proj"], experts.float() * tensors["e.down_proj_scale"].mT)


@pytest.mark.parametrize("linear_class", ["bitlinear", "autobitlinear"])
def test_bitnet_packs_four_rows_a_byte(tmp_path: Path, linear_class: str) -> None:
    rows = random(16, 8, high=3)
    packed = sum(
        (rows[4 * at : 4 * at + 4] << 2 * at for at in range(4)), torch.zeros_like(rows[:4])
    )
    tensors = {"a.weight": packed, "a.weight_scale": torch.tensor([3.0]), "b.weight": normal(4, 4)}
    folder = written(tmp_path / "c", tensors, quant_method="bitnet", linear_class=linear_class)
    factor = 1 / 3 if linear_class == "bitlinear" else 3
    torch.testing.assert_close(read(folder)["a.weight"], (rows.float() - 1) * factor)
    assert torch.equal(read(folder)["b.weight"], tensors["b.weight"])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_hqq_packs_the_first_rows_highest(tmp_path: Path, bits: int, axis: int) -> None:
    integers = random(16, 64, high=1 << bits).long()  # rows, columns
    groups = integers.reshape(-1, 32) if axis == 1 else integers.reshape(32, -1)
    scale, zero = (normal(*((32, 1) if axis == 1 else (1, 32)), seed=seed) for seed in (1, 2))
    each = 10 if bits == 3 else 8 // bits
    padded = torch.nn.functional.pad(groups, (0, 0, 0, -len(groups) % each))
    packed = sum(part << (each - 1 - at) * bits for at, part in enumerate(padded.chunk(each)))
    assert isinstance(packed, Tensor)
    about = {"nbits": bits, "axis": axis, "group_size": 32, "shape": [16, 64], "channel_wise": 1}
    tensors = {
        "a.W_q": packed.to(torch.int32 if bits == 3 else torch.uint8),
        "a.scale": scale,
        "a.zero": zero,
        **{f"a.{name}": torch.tensor(value) for name, value in about.items()},
    }
    found = read(written(tmp_path / "c", tensors, quant_method="hqq"))
    assert found.keys() == {"a.weight"}
    expected = ((groups.float() - zero) * scale).reshape(16, 64)
    assert torch.equal(found["a.weight"], expected)


# --- what Hugging Face makes of them ---------------------------------------------------------------------
def scaled(folder: Path, block: int) -> Path:
    """Give the matrices of a checkpoint's layers 8-bit floats, and a scale for every block."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if tensor.dim() == 2 and "layers" in name:
            tensors[name] = tensor.to(torch.float8_e4m3fn)
            count = [size // block for size in tensor.shape]
            tensors[f"{name}_scale_inv"] = normal(*count, seed=len(tensors)).abs()
    save_file(tensors, folder / "model.safetensors")
    config = {"quant_method": "fp8", "weight_block_size": [block, block]}
    edit_json(folder / "config.json", quantization_config=config)
    return folder


def test_hugging_face_reads_the_same_of_fp8(models: Models, tmp_path: Path) -> None:
    folder = scaled(models.copy(models.llama, tmp_path / "c"), 16)
    expected = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16
    )
    found = dict(load_model({"checkpoint": folder}, TEXT_GENERATION, None).named_parameters())
    for name, parameter in expected.named_parameters():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name].to(parameter.dtype), parameter), name


def test_hugging_face_reads_the_same_of_gpt_oss(tmp_path: Path) -> None:
    recipe = find_recipe("gpt_oss")
    folder = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "c")
    tensors = load_file(folder / "model.safetensors")
    for name in list(tensors):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = tensors.pop(name).shape
            tensors[f"{name}_blocks"] = random(experts, rows, columns // 32, 16)
            tensors[f"{name}_scales"] = random(experts, rows, columns // 32, high=9) + 120
    save_file(tensors, folder / "model.safetensors")
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
    expected = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
    )
    found = dict(load_model({"checkpoint": folder}, TEXT_GENERATION, None).named_parameters())
    for name, parameter in expected.named_parameters():
        assert torch.equal(found[name].to(parameter.dtype), parameter), name


# --- the model ---------------------------------------------------------------------------------------------
def test_a_weight_that_is_not_there_is_noticed(models: Models, tmp_path: Path) -> None:
    folder = scaled(models.copy(models.llama, tmp_path / "c"), 16)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"has no \['model.norm.weight'\]"):
        load_model({"checkpoint": folder}, TEXT_GENERATION, None)


def test_a_tensor_of_an_unknown_use_is_noticed(models: Models, tmp_path: Path) -> None:
    folder = scaled(models.copy(models.llama, tmp_path / "c"), 16)
    tensors = load_file(folder / "model.safetensors")
    path = "model.layers.0.self_attn.q_proj"
    extra = {
        f"{path}.input_scale": torch.ones(()),
        f"{path}.bias": torch.zeros(64),
        "mtp.norm": torch.ones(2),
    }
    save_file(tensors | extra, folder / "model.safetensors")
    load_model({"checkpoint": folder}, TEXT_GENERATION, None)
    save_file(tensors | {f"{path}.weight_zeros": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"q_proj\.weight_zeros"):
        load_model({"checkpoint": folder}, TEXT_GENERATION, None)


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot decode 'quip'; it knows auto-round, awq"):
        open_weights(tmp_path, {"quant_method": "quip"})


# --- left sides --------------------------------------------------------------------------------------------
def test_older_manifests_have_a_block_of_activations() -> None:
    assert Numerics.from_dict({"matrices": [], "activation_block": 32}).int8_activations
    assert not Numerics.from_dict({"matrices": [], "activation_block": None}).int8_activations
    assert Numerics.from_dict(Numerics(int8_activations=True).as_dict()).int8_activations


def kept(name: str, rows: int, columns: int, block: int, *, ordered: bool = False) -> RoundedMatrix:
    format = Format(bits=4, block=block, zero_points=True, act_order=ordered)
    return RoundedMatrix(
        name=name,
        rows=rows,
        columns=columns,
        input_major=False,
        format=format,
        multiplied=True,
        kept=True,
    )


def to_int8_and_back(values: Tensor, block: int) -> Tensor:
    blocks = values.unflatten(-1, (-1, block))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    return (torch.round(blocks / step) * step).flatten(-2)


@torch.no_grad()
def test_left_sides_are_rounded_in_the_blocks_and_the_order_of_each_matrix() -> None:
    model = torch.nn.ModuleDict(
        {name: torch.nn.Linear(64, 8, bias=False) for name in ("a", "b", "c")}
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    matrices = [kept("a.weight", 8, 64, 16), kept("b.weight", 8, 64, 32, ordered=True)]
    left_sides = round_weights(model, matrices, {"b.weight": [[order]]})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    x = normal(3, 64)
    with Arithmetic(left_sides, halved=False):
        found = {name: layer(x) for name, layer in model.items()}
    torch.testing.assert_close(found["a"], to_int8_and_back(x, 16) @ model["a"].weight.T)
    sorted_ = to_int8_and_back(x[:, order], 32) @ model["b"].weight[:, order].T
    torch.testing.assert_close(found["b"], sorted_)
    torch.testing.assert_close(found["c"], x @ model["c"].weight.T)


def test_an_order_that_the_checkpoint_does_not_have_is_noticed() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 8)})
    with pytest.raises(
        ValueError, match=r"Matrix 0 of a\.weight has no single act-order of its columns"
    ):
        round_weights(model, [kept("a.weight", 8, 64, 16, ordered=True)])


@pytest.mark.parametrize("alike", [True, False])
@torch.no_grad()
def test_experts_have_an_order_each(tmp_path: Path, alike: bool) -> None:
    """transformers joins the experts of a layer to one parameter; the parts of an expert must have the same."""
    recipe = find_recipe("qwen3_moe")
    folder = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "c")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    names = list(load_file(folder / "model.safetensors"))
    joined = next(
        name for name, _ in model.named_parameters() if name.endswith("experts.gate_up_proj")
    )
    path, columns = joined.removesuffix(".gate_up_proj"), model.get_parameter(joined).shape[-1]
    orders = {
        f"{path}.{expert}.{part}.weight": torch.arange(columns).roll(expert + 1 if alike else at)
        for expert in range(len(model.get_parameter(joined)))
        for at, part in enumerate(("gate_proj", "up_proj"), 1)
    }
    assert orders.keys() <= set(names)
    found = by_parameter(model, names, orders)
    rows = model.get_parameter(joined).shape[1]
    matrix = kept(f"{joined}.1", rows, columns, columns // 2, ordered=True)
    if not alike:
        with pytest.raises(ValueError, match="no single act-order of its columns"):
            round_weights(model, [matrix], found)
        return
    ((side,),) = round_weights(model, [matrix], found).values()
    assert (side.start, side.stop) == (rows * columns, 2 * rows * columns)
    assert side.order is not None
    assert torch.equal(side.order, torch.arange(columns).roll(2))


# --- the ladder ------------------------------------------------------------------------------------
def judges_of(storage: str, numerics: Numerics, quantization: str | None) -> dict[str, Judge]:
    """Make the judges of a package, whose reference computed twice."""
    spec = {"weights": {"storage": storage}, "spec": {}, "why": {}}
    made = {"manifest": spec, "task": TEXT_GENERATION, "target": "ort"}
    answers = np.random.default_rng(0).normal(size=(2, 8))
    variants = ("reference", "noise", *(["rounded"] if numerics.rounds_weights else []))
    about = {"class": "LlamaForCausalLM", "transformers": "5"}
    reference = Answers(
        about={**about, "quantization": quantization} if quantization else about,
        arrays={f"{name}.0": answers for name in variants},
    )
    package: Any = SimpleNamespace(**made)
    return validation._judges(package, reference, numerics, "tiny", device=None, twin=None)


@pytest.mark.parametrize(
    ("storage", "numerics", "quantization", "compared"),
    [
        ("fp32", Numerics(), None, ["float32"]),
        ("fp32", Numerics(), "awq", ["float32 of dequantized weights"]),
        (
            "stored",
            Numerics(matrices=(kept("a.weight", 8, 64, 16),), int8_activations=True),
            "awq",
            ["float32 of dequantized weights"],
        ),
        (
            "stored",
            Numerics(
                matrices=(
                    kept("a.weight", 8, 64, 16),
                    replace(kept("b.weight", 8, 64, 16), kept=False),
                )
            ),
            "awq",
            ["float32 of dequantized weights rounded as the package computes"],
        ),
        (
            "int8",
            Numerics(matrices=(replace(kept("a.weight", 8, 64, 16), kept=False),)),
            "awq",
            ["float32 of dequantized weights rounded to int8"],
        ),
    ],
    ids=["floats", "dequantized", "stored", "some rounded again", "rounded again"],
)
def test_a_record_names_the_reference(
    storage: str, numerics: Numerics, quantization: str | None, compared: list[str]
) -> None:
    found = judges_of(storage, numerics, quantization)
    assert [value.against["dtype"] for value in found.values()] == compared


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        ({"quant_method": "awq"}, []),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ["activations"]),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"input_activations": None}},
            },
            [],
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"input_activations": {"num_bits": 8}}},
                "kv_cache_scheme": {"num_bits": 8},
            },
            ["activations", "keys and values"],
        ),
    ],
)
def test_a_record_lists_schemes_that_are_not_applied(
    config: dict[str, Any], left_out: list[str]
) -> None:
    assert reference_formats.left_out(config) == left_out
    about = {
        "choices": {"made": 0, "runs": {}},
        "left_out": left_out,
        "stored": None,
        "settings": {"files": {}},
    }
    trial: Any = SimpleNamespace(greedy=None, settings={})
    judges = judges_of("fp32", Numerics(), "fp8")
    reported = validation._report(trial, None, Answers(about=about, arrays={}), judges)
    message = reported.get("not_applied", "")
    assert bool(message) == bool(left_out)
    assert all(name in message for name in left_out)
