# SPDX-License-Identifier: Apache-2.0
"""Key/value heads, repeated: every decoder answers as without, or says why it cannot have more of them."""

import importlib.util
import json
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import parity
import pytest
import quantized
import torch
from checkout import ROOT
from fixtures_builds import Models
from parity import PLAIN, Array, Subject, Variant
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.checkpoint.encoded import Encoded
from qeff_zoo.checkpoint.expressions import rows
from qeff_zoo.checkpoint.formats.rows import repeated as repeated_rows
from qeff_zoo.checkpoint.opening import TensorInfo, open_checkpoint
from qeff_zoo.errors import PlanError, StoreError, UnsupportedModelError
from qeff_zoo.export import loader
from qeff_zoo.hub.entries import package_path
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation.reference.formats import open_weights
from qeff_zoo.weights import kv_heads
from qeff_zoo.weights.bindings import Binding

pytestmark = pytest.mark.turns(2)

DECODERS = parity.names_of("text-generation")
#: What configs do not tell: these weights show that heads cannot be repeated.
BY_WEIGHTS = {"stablelm-12b": "k_layernorm.norms"}
#: Sums of norms over all heads of a token are longer.
ROUNDING = 3e-6
KEYS_AND_VALUES = ("k_proj.weight", "v_proj.weight")


def requested_of(config: Any) -> int:
    """Return the most heads that there can be; any number where there can be no other."""
    return max(kv_heads.counts(config), default=4)


def refusal(name: str, config: Any) -> str:
    recipe = parity.all_cases()[name].recipe
    return " ".join(kv_heads.problems(name, config, recipe, requested_of(config)))


def repeat(model: Any, wide: Any) -> dict[str, Array]:
    """Make the weights of a model with more heads of those of one with fewer."""
    stored = {name: value.numpy() for name, value in model.state_dict().items()}
    shapes = {name: value.shape for name, value in stored.items()}
    bound = kv_heads.repeat(Binding({name: name for name in stored}, shapes, (), {}), model, wide)
    return {
        name: rows(
            e, lambda name, start, stop: stored[name][start:stop] if stop else stored[name], stored
        )  # type: ignore[arg-type]
        for name, e in bound.expressions.items()
    }


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(4)
def test_a_decoder_has_the_same_output_or_a_reason(name: str) -> None:
    case = parity.all_cases()[name]
    config, heads = case.config, requested_of(case.config)
    refused = refusal(name, config)
    if refused:
        assert refused.endswith("Leave it out.")
        return
    model, wide = (
        parity.hugging_face(one, case.recipe.task)
        for one in (config, kv_heads.widened(config, heads))
    )
    if name in BY_WEIGHTS:
        with pytest.raises(UnsupportedModelError, match=BY_WEIGHTS[name]):
            repeat(model, wide)
        return
    weights = {key: torch.from_numpy(value) for key, value in repeat(model, wide).items()}
    wide.load_state_dict(weights)
    expected, found = (parity.reference(one, parity.tokens()) for one in (model, wide))
    assert np.abs(expected - found).max() <= ROUNDING * np.abs(expected).max()


@pytest.mark.parametrize("name", ["phi3-base", "doge-base", "zaya-base", "jetmoe-base"])
def test_weights_agree_with_the_fields_of_their_recipe(name: str) -> None:
    case = parity.all_cases()[name]
    heads = 2 * case.config["num_key_value_heads"]
    model, wide = (
        loader.build_meta(one, case.recipe.task)
        for one in (case.config, kv_heads.widened(case.config, heads))
    )
    with pytest.raises(UnsupportedModelError, match="2 key/value heads cannot be repeated"):
        kv_heads.repeat(Binding({}, {}, (), {}), model, wide)


class Repeated(Subject):
    """A subject with the most key/value heads that it can have."""

    def graph(self, variant: Variant = PLAIN, *, everything: bool = False) -> ir.Model:
        heads = ("kv_heads", requested_of(self.config))
        return super().graph((*variant, heads), everything=everything)

    @property
    def bindings(self) -> Any:  # type: ignore[override]
        wide = kv_heads.widened(self.config, requested_of(self.config))
        model, more = (
            loader.build_meta(config, self.recipe.task) for config in (self.config, wide)
        )
        names = super().bindings
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        return kv_heads.repeat(Binding(names, shapes, (), {}), model, more).expressions


@cache
def repeated(name: str) -> Subject:
    case = parity.all_cases()[name]
    return Repeated(case.aligned, case.recipe)


#: Every state with heads, and every way to compute: what repeats them was compared for all decoders above.
TRACED = [
    ("llama-base", "int4"), ("gemma3_text-base", "fp32"), ("gpt_oss-base", "int4"), ("qwen3_next-base", "portable"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(name, how, marks=pytest.mark.together(name)) for name, how in TRACED],
)
@pytest.mark.sampled(99, kept=["llama-base"])
def test_a_graph_answers_the_same(name: str, how: str) -> None:
    """Prefill and decode, of rows of several lengths."""
    plain, wide = parity.subject(name), repeated(name)
    ids = parity.tokens()
    scenario = parity.SCENARIOS["padded_batch"]
    nothing = np.zeros((*ids.shape, 1))
    answers = (
        scenario(lambda one=one, **sizes: one.steps(how, **sizes), ids, nothing)
        for one in (plain, wide)
    )
    for (expected, _), (found, _) in zip(*answers, strict=True):
        assert np.abs(expected - found).max() <= ROUNDING * np.abs(expected).max()
    heads = {
        value.shape[1]
        for value in wide.graph().graph.inputs
        if value.name.startswith(("past_key.", "past_value."))
    }
    assert heads == {requested_of(wide.config)}


# --- what is refused -----------------------------------------------------------------------------

LLAMA = {"num_attention_heads": 24, "num_key_value_heads": 4}


@pytest.mark.parametrize(
    ("model_type", "config", "heads", "problem"),
    [
        ("llama", LLAMA, 8, ""),
        ("llama", LLAMA, 24, ""),
        ("llama", LLAMA, 6, "a multiple of the 4 that 'x' has, .* Choose one of 8, 12, 24."),
        ("llama", LLAMA, 16, "its 24 attention heads are a multiple of. Choose one of 8, 12, 24."),
        ("llama", LLAMA, 4, "Choose one of 8, 12, 24."),
        ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}, 8, "no key/value head that"),
        ("gpt2", {"n_head": 12}, 12, "it has 12 for 12 heads"),
        ("phi3", LLAMA, 8, "made by one matrix"),
        ("falcon", {}, 8, "made by one matrix"),
        ("deepseek_v3", {**LLAMA, "kv_lora_rank": 512}, 8, "latent attention"),
        ("recurrent_gemma", LLAMA, 8, "windows and recurrent states only"),
        ("mimo_v2_flash", LLAMA, 8, "sliding layers have twice as many"),
        ("gemma4_text", {**LLAMA, "num_global_key_value_heads": 2}, 8, "num_global_key_value_heads"),
        (
            "gemma4_text",
            {**LLAMA, "per_layer_config": {"1": {"num_key_value_heads": 2}}},
            8,
            r"another number of them \(`per_layer_config.1.num_key_value_heads`\)",
        ),
        ("gemma4_text", {**LLAMA, "num_global_key_value_heads": None}, 8, ""),
        ("laguna", {**LLAMA, "num_attention_heads_per_layer": [24, 16]}, 8, ""),
        ("laguna", {**LLAMA, "num_attention_heads_per_layer": [24, 16]}, 24, "Choose one of 8."),
    ],
)  # fmt: skip
def test_what_cannot_be_repeated_is_refused_with_the_reason(
    model_type: str, config: dict[str, Any], heads: int, problem: str
) -> None:
    import re

    found = list(kv_heads.problems("x", config, find_recipe(model_type), heads))
    assert len(found) == bool(problem)
    assert not problem or re.search(problem, found[0])


# --- builds --------------------------------------------------------------------------------------


def test_a_package_records_its_number_of_kv_heads(models: Models, home: Path) -> None:
    plain = models.build(models.llama, home, weights="int4")
    package = models.build(models.llama, home, weights="int4", kv_heads=4)
    assert package.manifest["spec"]["task"]["kv_heads"] == 4
    assert "-kv4" in package_path(package.manifest)
    heads = [
        {state["axes"][1] for state in one.manifest["programs"][0]["states"]}
        for one in (plain, package)
    ]
    assert heads == [{2}, {4}]
    assert len(list((home / "graphs").iterdir())) == 2


def test_a_build_refuses_before_it_traces(models: Models, home: Path) -> None:
    with pytest.raises(PlanError, match=r"--kv-heads is 3; .* Choose one of 4\."):
        pipeline.make_plan(str(models.llama), Request(kv_heads=3))
    with pytest.raises(PlanError, match="--kv-heads is 0, expected at least 1"):
        pipeline.make_plan(str(models.llama), Request(kv_heads=0))
    with pytest.raises(PlanError, match="--kv-heads does not apply to feature-extraction"):
        pipeline.make_plan(str(models.bert), Request(kv_heads=4))
    normed = models.checkpoint("normed", "stablelm", qk_layernorm=True)
    with pytest.raises(UnsupportedModelError, match=r"norms.2.* is \[\] in the model"):
        pipeline.build(str(normed), Request(kv_heads=4, ctx_len=64), validate=False)


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.full
def test_more_devices_than_heads_share_them_repeated(
    models: Models, home: Path, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"ctx_len": 64, "prefill_seq_len": 16, "num_devices": 4}
    requested = Request(target="qaic", **sizes)
    with pytest.warns(UserWarning, match="4 devices cannot share .* 2 key/value .* --kv-heads 4 "):
        pipeline.make_plan(str(models.llama), requested)
    request = Request(target="qaic", kv_heads=4, **sizes)
    folder = pipeline.prepare(str(models.llama), tmp_path / "prepared", request=request)
    content = json.loads((folder / "prepared.json").read_bytes())
    assert content["manifest"]["validated"] == "emulated"
    devices = json.loads((folder / "mdp_partitions.json").read_bytes())["partitions"][0]["devices"]
    inputs = ir.load(folder / "model.onnx").graph.inputs
    heads = {value.shape[1] for value in inputs if value.name.startswith("past_")}
    assert heads == {len(devices)} == {4}


def test_a_pipeline_shares_heads_within_its_stages(models: Models, home: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        request = Request(target="qaic", num_devices=4, mdp_num_partitions=2)
        pipeline.make_plan(str(models.llama), request)


# --- a checkpoint for other tools ----------------------------------------------------------------


@cache
def script() -> Any:
    path = ROOT / "scripts" / "replicate_kv_heads.py"
    spec = importlib.util.spec_from_file_location("replicate_kv_heads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkpoint_with_repeated_heads_answers_the_same(models: Models, tmp_path: Path) -> None:
    written = script().replicate(str(models.llama), 2, tmp_path / "out")
    with torch.no_grad():
        ids = torch.from_numpy(parity.tokens())
        own, more = (
            AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            for folder in (models.llama, written)
        )
        assert torch.equal(own(input_ids=ids).logits, more(input_ids=ids).logits)
    assert more.config.num_key_value_heads == 4
    assert (written / "tokenizer.json").read_bytes() == (
        models.llama / "tokenizer.json"
    ).read_bytes()


def even(models: Models) -> Path:
    """Return a Llama whose heads have as many rows as a block of FP8."""
    return models.checkpoint("even", "llama", head_dim=16)


def decoded(folder: Path) -> dict[str, torch.Tensor]:
    """Decode the key and value matrices of a quantized checkpoint by the reference's decoders."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = open_weights(folder, config).tensors
    return {name: tensors[name][:] for name in tensors if name.endswith(KEYS_AND_VALUES)}


@pytest.mark.parametrize(
    "how", ["fp8", "awq", "gptq", "gptq-ordered", "compressed-tensors", "w8a8"]
)
def test_quantized_heads_are_repeated_as_they_are_stored(
    how: str, models: Models, tmp_path: Path
) -> None:
    source = quantized.quantize(even(models), tmp_path / "source", how)
    written = script().replicate(str(source), 2, tmp_path / "out")

    before, after = decoded(source), decoded(written)
    assert len(before) == len(after) > 0
    for name, value in before.items():
        heads = value.reshape(2, -1, value.shape[-1])
        assert torch.equal(after[name], heads.repeat_interleave(2, 0).flatten(0, 1))
    dtypes = [
        {name: entry.dtype for name, entry in open_checkpoint(str(folder)).stored.items()}
        for folder in (source, written)
    ]
    assert dtypes[0] == dtypes[1]


@pytest.mark.parametrize(("block", "heads", "expected"), [
    (64, 2, [0, 0, 1, 1]), (128, 2, [0, 0]), (128, 4, [0, 0, 1, 1]), (256, 2, [0]), (0, 2, [0]),
    (1, 1, [*range(64)] * 2), (96, 2, None), (96, 3, None), (192, 3, [0, 0]),
])  # fmt: skip
def test_scales_of_blocks_are_repeated(block: int, heads: int, expected: list[int] | None) -> None:
    rows_of_all, count = 64 * heads, -(-64 * heads // block) if block else 1
    scale = TensorInfo("k.weight_scale_inv", "F32", (count, 1), Path(), 0, 4 * count)
    weight = TensorInfo("k.weight", "F8_E4M3", (rows_of_all, 8), Path(), 0, 8 * rows_of_all)
    tensors = {one.name: one for one in (weight, scale)}
    encoded = Encoded(
        shape=weight.shape,
        sources=(scale.name,),
        about="fp8",
        values=None,
        block_rows=block,  # type: ignore[arg-type]
    )
    if expected is None:
        with pytest.raises(UnsupportedModelError, match=f"{block} rows share a scale"):
            repeated_rows(encoded, tensors, {"weight_scale_inv": 0}, heads, 2)
        return
    made = repeated_rows(encoded, tensors, {"weight_scale_inv": 0}, heads, 2)[scale.name]
    stored = np.arange(count)[:, None]
    found = rows(made, lambda _, start, stop: stored[start:stop], tensors)
    assert found.ravel().tolist() == expected


def test_transformers_loads_repeated_fp8_heads(models: Models, tmp_path: Path) -> None:
    source = quantized.quantize(even(models), tmp_path / "source", "fp8", plain=("lm_head",))
    written = script().replicate(str(source), 2, tmp_path / "out")
    settings = FineGrainedFP8Config(weight_block_size=(16, 16), dequantize=True)
    with torch.no_grad():
        ids = torch.from_numpy(parity.tokens())
        own, more = (
            AutoModelForCausalLM.from_pretrained(folder, quantization_config=settings).eval()
            for folder in (source, written)
        )
        expected, found = (model.float()(input_ids=ids).logits for model in (own, more))
    assert torch.allclose(expected, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "problem"),
    [("gptq-3", "16 rows do not fill whole words"), ("bitsandbytes", "does not store rows apart")],
)
def test_quantized_heads_that_cannot_be_repeated_are_refused(
    how: str, problem: str, models: Models, tmp_path: Path
) -> None:
    source = quantized.quantize(even(models), tmp_path / "source", how)
    with pytest.raises(UnsupportedModelError, match=f"{problem}.*Use `qeff-zoo build --kv-heads`"):
        script().replicate(str(source), 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_script_shows_answers_before_and_after(
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(qeff_zoo, "build", partial(qeff_zoo.build, validate=False))
    words = ["--model_name", str(models.llama), "--repeat", "2", "-o", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["script", *words, "--prompt", "the quick"])
    assert script().main() == 0
    path, before, after = capsys.readouterr().out.splitlines()
    assert path == str(tmp_path / "out")
    assert before.split("]")[0].removeprefix("before") == after.split("]")[0].removeprefix("after")
    assert before.count(",") == 10  # ten tokens, and the package


def test_such_a_checkpoint_appears_whole_or_not_at_all(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(PlanError, match=r"Choose one of 4\."):
        script().replicate(str(models.llama), 3, out)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(script(), "_pieces", fail)
        with pytest.raises(StoreError, match="No space left"):
            script().replicate(str(models.llama), 2, out)
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    (out / "mine").write_text("kept")
    with pytest.raises(StoreError, match="absent or empty"):
        script().replicate(str(models.llama), 2, out)
    assert (out / "mine").read_text() == "kept"
