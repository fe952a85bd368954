# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo quantize`: the integers it chooses, what it folds, and the checkpoint that it writes."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
from checkout import TINY_LLAMA
from fixtures_builds import Models
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError, PlanError, StoreError, UnsupportedModelError
from qeff_zoo.quantizer.budget import Unit, choose
from qeff_zoo.quantizer.grids import Rounded, Scheme
from qeff_zoo.quantizer.options import QuantizeOptions
from qeff_zoo.quantizer.quantize import quantize
from qeff_zoo.quantizer.rounding import damped, error_of, gptq, nearest
from qeff_zoo.quantizer.writing import Writer
from qeff_zoo.validation.reference.formats import open_weights
from qeff_zoo.weights.writing import evaluate

pytestmark = pytest.mark.turns(3)

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_HEADS = {"num_key_value_heads": 2, "tie_word_embeddings": True, "pad_token_id": 0}
_KINDS = ("llama", "gemma2", "qwen2", "bert")


def _model(kind: str) -> Any:
    torch.manual_seed(0)
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**_SIZES, **_HEADS))
    elif kind == "gemma2":
        config = Gemma2Config(**_SIZES, **_HEADS, head_dim=16, sliding_window=8)
        model = Gemma2ForCausalLM(config)
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**{**_SIZES, **_HEADS, "tie_word_embeddings": False}))
    elif kind == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(**_SIZES, **_HEADS, num_local_experts=6))
    else:
        model = BertModel(BertConfig(**_SIZES), add_pooling_layer=False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # norms that are not all 1, biases that are not all 0
            parameter.data += torch.randn_like(parameter) * 0.3
        elif "proj" in name or "dense" in name:  # inputs of unlike sizes, for scales to be found
            parameter.data *= 3 * torch.rand(parameter.shape[-1]).square() + 0.1
    return model.eval()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of random weights, without tokenizers; that of Llama in bfloat16."""
    found = {}
    for kind in (*_KINDS, "mixtral"):
        model = _model(kind)
        found[kind] = tmp_path_factory.mktemp(kind) / kind
        dtype = torch.bfloat16 if kind in ("llama", "gemma2") else torch.float32
        model.to(dtype).save_pretrained(found[kind])
    return found


def _read(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    checkpoint = open_checkpoint(str(folder))
    return {name: np.array(checkpoint.read(name)) for name in checkpoint.tensors}


def _answers(kind: str, folder: Path) -> torch.Tensor:
    """Return what transformers' model makes of the weights in a folder, read as floats."""
    model = _model(kind)
    checkpoint = open_checkpoint(str(folder))
    state = {}
    for name, info in checkpoint.tensors.items():
        values = torch.from_numpy(np.array(checkpoint.read(name)))
        if info.dtype == "BF16":
            values = values.view(torch.bfloat16)
        state[name] = values.float()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        answer = model(input_ids=torch.arange(40)[None] % 96)
    found: torch.Tensor = answer.logits if "logits" in answer else answer.last_hidden_state
    return found


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.sampled(2)
def test_every_matrix_of_four_kinds_is_rounded_better_than_to_the_nearest(
    kind: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    found = quantize(str(checkpoints[kind]), tmp_path / "out", QuantizeOptions())

    linears = 2 * (6 if kind == "bert" else 7)
    assert len(found.matrices) == linears
    assert all(one.error <= one.nearest_error for one in found.matrices)
    assert sum(one.error for one in found.matrices) < 0.8 * sum(
        one.nearest_error for one in found.matrices
    )


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.sampled(2)
def test_answers_are_nearer_to_the_float_models_than_with_the_nearest_integers(
    kind: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    expected = _answers(kind, checkpoints[kind])

    differences = {}
    for method in ("gptq", "nearest"):
        quantize(str(checkpoints[kind]), tmp_path / method, QuantizeOptions(method=method))
        differences[method] = float((_answers(kind, tmp_path / method) - expected).square().mean())

    assert differences["gptq"] < differences["nearest"]


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.sampled(2)
def test_folded_scales_leave_the_float_model_what_it_was(
    kind: str, checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrices as they are before they are rounded, written in float32, give the answers of before."""
    kept: dict[str, torch.Tensor] = {}
    from qeff_zoo.quantizer import work

    rounded = work.Work._round

    def keep(self: Any, name: str, weights: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
        kept[self.subject.sources[name].tensor] = weights.clone()
        rounded(self, name, weights, hessian)
        return weights

    monkeypatch.setattr(work.Work, "_round", keep)

    found = quantize(str(checkpoints[kind]), tmp_path / "out", QuantizeOptions(method="awq+gptq"))

    assert found.folded
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_bytes((checkpoints[kind] / "config.json").read_bytes())
    state = load_file(tmp_path / "out" / "model.safetensors")
    floats = {name: value for name, value in state.items() if ".weight_" not in name}
    save_file({**floats, **kept}, whole / "model.safetensors")
    expected = _answers(kind, checkpoints[kind])
    # No layer before changes the inputs, so nothing was compensated for.
    assert float((_answers(kind, whole) - expected).abs().max()) < 1e-5 * float(
        expected.abs().max().clamp_min(1)
    )


def test_folding_is_refused_where_a_norm_feeds_more_than_matrices(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    found = quantize(str(checkpoints["bert"]), tmp_path / "out", QuantizeOptions(method="awq+gptq"))

    assert all("value" in name for name in found.folded)  # not a norm: each feeds the sum as well


@pytest.mark.parametrize(
    ("kind", "wishes"),
    [
        ("llama", {"bits": 4, "embeddings": True}),
        ("llama", {"bits": 8, "embeddings": True}),
        ("llama", {"bits": 4, "embeddings": True, "zero_points": True}),
        ("bert", {"bits": 8, "zero_points": True, "method": "nearest"}),
        ("mixtral", {"bits": 4, "zero_points": True, "group_size": 16}),
    ],
    ids=str,
)
@pytest.mark.sampled(2)
def test_what_is_read_back_is_what_was_computed_bit_for_bit(
    kind: str,
    wishes: dict[str, Any],
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: dict[str, Rounded] = {}
    put = Writer.put_matrix

    def noting(self: Writer, path: str, found: Rounded, number: int) -> None:
        written[f"{path}.weight"] = found
        put(self, path, found, number)

    monkeypatch.setattr(Writer, "put_matrix", noting)

    quantize(str(checkpoints[kind]), tmp_path / "out", QuantizeOptions(**wishes))

    checkpoint = open_checkpoint(str(tmp_path / "out"))
    assert set(checkpoint.encoded) == set(written)
    assert ("model.embed_tokens.weight" in written) == wishes.get("embeddings", False)
    for name, found in written.items():
        assert np.array(checkpoint.read(name)).tobytes() == found.values.numpy().tobytes()
        integers = checkpoint.encoded[name].integers
        assert integers is not None
        group = wishes.get("group_size", 32)
        assert (integers.bits, integers.group) == (wishes["bits"], group)
        assert (integers.zeros is not None) == wishes.get("zero_points", False)


def test_zero_points_are_nearer_where_values_lie_on_one_side() -> None:
    torch.manual_seed(0)
    weights = torch.randn(16, 64) + 2
    weights[8:] -= 4
    even, errors = torch.ones(64), {}

    for zero_points in (False, True):
        found = nearest(weights, even, Scheme(4, 32, zero_points), torch.float16)
        errors[zero_points] = (found.values - weights).square().sum(1)
        assert found.zeros.any() == zero_points
        swept = gptq(weights, torch.eye(64), found.scheme, torch.float16)
        assert (swept.values - weights).square().sum() <= errors[zero_points].sum() * 1.001
        assert swept.integers.amin() >= -8
        assert swept.integers.amax() <= 7

    assert (errors[True] <= errors[False]).all()
    assert errors[True].sum() < 0.5 * errors[False].sum()


@pytest.mark.full
def test_experts_are_quantized_each_with_its_own_tokens(
    models: Models, home: Path, tmp_path: Path
) -> None:
    """Of a checkpoint that has them one by one, as transformers' models of one stack of them are saved."""
    floats = models.checkpoint("mixtral", "mixtral")
    models.trace(floats, home)
    distances = {}
    for method in ("nearest", "gptq"):
        found = quantize(str(floats), tmp_path / method, QuantizeOptions(method=method, tokens=512))
        distances[method] = found.distance
    names = {one.name for one in found.matrices}
    matrices = {
        name.removesuffix(".weight")
        for name, info in open_checkpoint(str(floats)).stored.items()
        if ".layers." in name and len(info.shape) == 2
    }
    assert {name for name in matrices if "experts" in name} <= names <= matrices
    assert all(one.error <= one.nearest_error for one in found.matrices)
    assert distances["gptq"] < 0.8 * distances["nearest"]
    config = json.loads((tmp_path / "gptq" / "config.json").read_text())["quantization_config"]
    assert set(config["config_groups"]["group_0"]["targets"]) == names

    package = qeff_zoo.build(found.path, ctx_len=64, validate=False)

    (program,) = package.manifest["programs"]
    assert program["ways"]["experts"].keys() == {"native"}
    assert program["ways"]["weights"].keys() == {"kept"}


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        # (experts, columns, rows), with biases, gates and ups in turns; a square one
        ("gpt_oss", {"intermediate_size": 64}),
        # the same, all experts multiplied in one product; zero points
        ("llama4_text", {"intermediate_size": 64}),
        # (experts, rows, columns)
        ("qwen3_moe", {"moe_intermediate_size": 64}),
    ],
)
@pytest.mark.sampled(99, kept=["qwen3_moe"])
def test_experts_of_one_tensor_are_quantized_one_by_one(
    model_type: str,
    config: dict[str, Any],
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written, what a package keeps, and what Hugging Face computes with it are the same numbers."""
    floats = models.checkpoint(f"{model_type}-64", model_type, **config)
    if model_type == "qwen3_moe":  # as transformers has them, not as its checkpoints do
        floats = models.copy(floats, tmp_path / "floats")
        model = AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32)
        model.save_pretrained(floats, save_original_format=False)
    if model_type == "gpt_oss":  # whose router can be told that an expert is never to be chosen
        floats = models.copy(floats, tmp_path / "floats")
        tensors = load_file(floats / "model.safetensors")
        for name in tensors:
            if name.endswith("router.bias"):
                tensors[name][0] = -100
        save_file(tensors, floats / "model.safetensors", {"format": "pt"})
    stacks = {
        name: info.shape
        for name, info in open_checkpoint(str(floats)).stored.items()
        if "experts." in name and len(info.shape) == 3
    }
    assert stacks
    written: dict[str, dict[int, Rounded]] = {}
    put = Writer.put_matrix

    def noting(self: Writer, path: str, found: Rounded, number: int) -> None:
        written.setdefault(path, {})[number] = found
        put(self, path, found, number)

    monkeypatch.setattr(Writer, "put_matrix", noting)
    wishes = QuantizeOptions(tokens=64, zero_points=model_type == "llama4_text")
    found = quantize(str(floats), tmp_path / "out", wishes)
    experts = [one for one in found.matrices if one.expert is not None]
    assert len(experts) == sum(shape[0] for shape in stacks.values())
    assert all(one.error <= one.nearest_error for one in found.matrices)
    assert not any("experts" in name for name in found.floats)
    missed = [one for one in experts if not one.is_reached]
    assert {one.expert for one in missed} == ({0} if model_type == "gpt_oss" else set())
    assert all(one.error == one.nearest_error for one in missed)

    checkpoint = open_checkpoint(str(tmp_path / "out"))
    reference = open_weights(checkpoint.folder, checkpoint.quantization).tensors
    for name, shape in stacks.items():
        assert checkpoint.logical[name].shape == shape
        turned = checkpoint.values[name][0] == "transpose"
        each = written[f"{name}_by_{'columns' if turned else 'rows'}"]
        values = torch.stack([each[number].values for number in range(shape[0])])
        wanted = (values.mT if turned else values).contiguous().numpy()
        assert evaluate(checkpoint.values[name], checkpoint).tobytes() == wanted.tobytes()
        assert reference[name][...].numpy().tobytes() == wanted.tobytes()

    package = qeff_zoo.build(found.path, ctx_len=32, prefill_seq_len=8)

    assert package.validated == "checkpoint"
    (program,) = package.manifest["programs"]
    assert program["ways"]["weights"].keys() == {"kept"}


def test_experts_computed_in_another_way_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    def transposed(self: Any, hidden: torch.Tensor, index: Any, weights: Any) -> torch.Tensor:
        return hidden @ self.down_proj.transpose(1, 2)[0].T

    monkeypatch.setattr(MixtralExperts, "forward", transposed)

    with pytest.raises(UnsupportedModelError, match="experts cannot be quantized one by one"):
        quantize(str(checkpoints["mixtral"]), tmp_path / "out", QuantizeOptions())

    assert not list(tmp_path.iterdir())


def test_what_stays_float_is_copied_as_it_is(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    quantize(str(checkpoints["qwen2"]), tmp_path / "out", QuantizeOptions())

    before, after = _read(checkpoints["qwen2"]), _read(tmp_path / "out")
    assert set(before) == set(after)
    for name, values in before.items():
        is_matrix = values.ndim == 2 and ".layers." in name
        assert is_matrix or values.tobytes() == after[name].tobytes()


def test_a_build_keeps_the_integers(models: Models, home: Path, tmp_path: Path) -> None:
    models.trace(models.llama, home)
    found = qeff_zoo.quantize(models.llama, tmp_path / "out", budget=7.0, embeddings=True)

    package = qeff_zoo.build(found.path, ctx_len=32, prefill_seq_len=8, validate=False)

    matrices = package.manifest["programs"][0]["numerics"]["matrices"]
    assert all(one["kept"] for one in matrices)
    assert {one["format"]["bits"] for one in matrices} == {4, 8}


def test_a_budget_is_kept_and_spent_where_it_counts(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    found = quantize(
        str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions(budget=6.5, embeddings=True)
    )

    assert 6.0 < found.bits_per_weight <= 6.5
    stored = open_checkpoint(str(tmp_path / "out")).stored
    nbytes = sum(
        info.nbytes
        for name, info in stored.items()
        if name.endswith(("weight_packed", "weight_scale"))
    )
    weights = sum(np.prod(one.shape) for one in load_file(
        checkpoints["llama"] / "model.safetensors").values() if one.ndim == 2)  # fmt: skip
    assert 8 * nbytes / weights == pytest.approx(found.bits_per_weight)
    by_layer: dict[str, set[int]] = {}
    for one in found.matrices:  # engines join these into one matrix
        if one.name.endswith(("q_proj", "k_proj", "v_proj")):
            by_layer.setdefault(one.name.rpartition(".")[0], set()).add(one.bits)
    assert all(len(bits) == 1 for bits in by_layer.values())


def test_the_dearest_units_get_more_bits() -> None:
    few, many = Scheme(4, 32), Scheme(8, 32)
    units = [
        Unit((name,), 100, {few: 256.0, many: 1.0}, cost)
        for name, cost in (("a", 0.1), ("b", 0.5), ("c", 0.3))
    ]

    chosen = choose(units, 300 * 4.5 + 2 * 100 * 4)

    assert chosen == {"a": few, "b": many, "c": many}


def test_two_runs_write_the_same_bytes(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    wishes = QuantizeOptions(budget=7.0, embeddings=True, method="awq+gptq")
    for name in ("one", "two"):
        quantize(str(checkpoints["qwen2"]), tmp_path / name, wishes)

    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_texts_are_in_the_weights_digest(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    found = quantize(str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions())

    with (tmp_path / "out" / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    noted = json.loads(header["__metadata__"]["quantization"])
    assert noted == found.calibration
    assert noted["texts"].startswith("sha256:")
    assert noted["method"] == "gptq"


def test_sweeps_never_add_to_the_error() -> None:
    torch.manual_seed(1)
    mixing = torch.eye(64) + 0.3 * torch.randn(64, 64)
    inputs = torch.randn(200, 64) @ mixing
    hessian, weights = inputs.T @ inputs, torch.randn(48, 64)

    for scheme in (Scheme(4, 32), Scheme(4, 64), Scheme(8, 16)):
        found = gptq(weights, hessian, scheme, torch.bfloat16)
        plain = nearest(weights, torch.ones(64), scheme, torch.bfloat16)
        errors = [error_of(weights, one.values, damped(hessian)) for one in (found, plain)]
        assert errors[0] < 0.7 * errors[1]
        half = 1 << (scheme.bits - 1)
        assert found.integers.min() >= -half
        assert found.integers.max() < half
        assert torch.equal(found.integers, found.integers.round())
        assert torch.equal(found.scales, found.scales.bfloat16().float())


def test_columns_of_zeros_and_unused_inputs_do_no_harm() -> None:
    weights = torch.randn(8, 64)
    weights[:, :32] = 0
    hessian = torch.zeros(64, 64)

    found = gptq(weights, hessian, Scheme(4, 32), torch.float16)

    assert torch.isfinite(found.values).all()
    assert not found.values[:, :32].any()
    assert float((found.values - weights).abs().max()) < 0.5


def test_a_text_is_read_with_the_tokenizer(tmp_path: Path) -> None:
    example = TINY_LLAMA
    text = (example / "README.md").read_text(encoding="utf-8")

    found = quantize(str(example), tmp_path / "out", QuantizeOptions(tokens=300), text=text)

    assert 300 <= found.calibration["tokens"] < 900
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert found.distance < 0.05


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"bits": 3}, "Cannot quantize to 3 bits; expected 4 or 8"),
        ({"group_size": 48}, "groups of 48; expected one of 16, 32, 64, 128"),
        ({"method": "magic"}, "No method 'magic'; expected one of gptq, awq+gptq, nearest"),
        ({"tokens": 0}, "Cannot calibrate on 0 tokens"),
        ({"budget": 4.0}, "bits per weight in the fewest bits, more than 4"),
    ],
    ids=["bits", "group size", "method", "tokens", "budget"],
)
def test_wishes_that_cannot_be_met_are_refused(
    wishes: dict[str, Any], message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=message.replace("+", r"\+")):
        quantize(str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions(**wishes))

    assert not list(tmp_path.iterdir())


def test_a_group_that_divides_nothing_is_refused(tmp_path: Path) -> None:
    sizes = {**_SIZES, "hidden_size": 48, "intermediate_size": 80}
    LlamaForCausalLM(LlamaConfig(**sizes, **_HEADS)).save_pretrained(tmp_path / "odd")

    with pytest.raises(UnsupportedModelError, match=r"no matrix in its layers .* groups of 32"):
        quantize(str(tmp_path / "odd"), tmp_path / "out", QuantizeOptions())


def test_a_quantized_checkpoint_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    quantize(str(checkpoints["llama"]), tmp_path / "once", QuantizeOptions())

    with pytest.raises(UnsupportedModelError, match="quantized already"):
        quantize(str(tmp_path / "once"), tmp_path / "twice", QuantizeOptions())


def test_a_text_without_a_tokenizer_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(GenerationError, match=r"no tokenizer\.json"):
        quantize(str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions(), text="Some words.")


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    example = TINY_LLAMA

    for text in ("", "A few words."):
        with pytest.raises(GenerationError, match="is too short to calibrate on"):
            quantize(str(example), tmp_path / "out", QuantizeOptions(), text=text)


def test_a_folder_that_holds_something_is_left_alone(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    with pytest.raises(StoreError, match="it is there already"):
        quantize(str(checkpoints["llama"]), tmp_path, QuantizeOptions())

    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_killed_run_leaves_no_folder(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from qeff_zoo.quantizer import work, quantize, options\n"
        "work.Work._copy_rest = lambda *_: os.kill(os.getpid(), 9)\n"
        "quantize.quantize(sys.argv[1], Path(sys.argv[2]), options.QuantizeOptions())\n"
    )
    out = tmp_path / "to" / "out"
    command = [warm.PYTHON.executable, "-c", script, str(checkpoints["llama"]), str(out)]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] != []
    assert not out.exists()

    found = quantize(
        str(checkpoints["llama"]), out, QuantizeOptions()
    )  # which removes what was left

    assert found.path.is_dir()
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_model_that_is_no_chain_of_layers_is_refused(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    forward = LlamaDecoderLayer.__call__

    def doubled(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        return forward(self, *arguments, **options) * 2  # something between two layers

    monkeypatch.setattr(LlamaDecoderLayer, "__call__", doubled)

    with pytest.raises(UnsupportedModelError, match="does more between two layers"):
        quantize(str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions())


def test_layers_that_are_called_by_other_names_are_refused(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    forward = LlamaDecoderLayer.__call__

    def renamed(self: nn.Module, hidden_states: Any, **options: Any) -> Any:
        return forward(self, x=hidden_states, **options)

    monkeypatch.setattr(LlamaDecoderLayer, "__call__", renamed)

    with pytest.raises(UnsupportedModelError, match="does more between two layers"):
        quantize(str(checkpoints["llama"]), tmp_path / "out", QuantizeOptions())


def test_the_command_prints_its_result(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoints["llama"])

    code = cli.main(["quantize", model, "-o", str(tmp_path / "out"), "--budget", "7"])

    printed_text = capsys.readouterr()
    assert code == 0
    assert printed_text.out == f"{tmp_path / 'out'}\n"
    assert "bits per weight; mean KL from the float model" in printed_text.err
    assert "int4 in groups of 32" in printed_text.err
    code = cli.main(["quantize", model, "-o", str(tmp_path / "two"), "--bits", "8", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {one["bits"] for one in answer["matrices"]} == {8}
