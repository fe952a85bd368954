# SPDX-License-Identifier: Apache-2.0
"""Adapters that are merged into weights: what peft's merge_and_unload gives, proved by every build, and refusals."""

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft_adapters
import pytest
import torch
from fixtures_builds import Models
from package_builder import SPEC, fill, overwrite
from peft import PeftModel
from runnable_package import edit_json
from safetensors.numpy import load_file, save_file

import qeff_zoo
from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.adapters.merged import open_merged
from qeff_zoo.checkpoint.expressions import substitute
from qeff_zoo.checkpoint.merging import changes, values_of
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.checkpoint.sources import with_adapters
from qeff_zoo.cli import main
from qeff_zoo.errors import AdapterError, PlanError
from qeff_zoo.export import loader
from qeff_zoo.hub.resolve import resolve as resolve_package
from qeff_zoo.pipeline import graphs
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.plan import resolve
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store
from qeff_zoo.validation.ladder import validate
from qeff_zoo.validation.reference import adapters
from qeff_zoo.weights import bindings
from qeff_zoo.weights.writing import evaluate

pytestmark = pytest.mark.turns(2)

SHAPE = {"prefill_seq_len": 8, "ctx_len": 48}
#: Adapters that only merging takes, besides those that slots take too.
KINDS: dict[str, dict[str, Any]] = {
    **peft_adapters.KINDS,
    "DoRA": {"r": 4, "target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "saved modules": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    "embeddings": {"r": 4, "target_modules": ["embed_tokens", "k_proj"]},
}
#: Of float32, relative to the largest number of a weight.
ROUNDING = 1e-6


def merged_by_peft(model: Any, adapter: Path) -> dict[str, torch.Tensor]:
    wrapped = PeftModel.from_pretrained(model, str(adapter))
    found: dict[str, torch.Tensor] = wrapped.merge_and_unload().state_dict()
    return found


def merged_here(source: Path, asked: Iterable[str], model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Compute every weight that adapters change as a build writes it."""
    checkpoint = with_adapters(open_checkpoint(str(source)), tuple(asked))
    meta = loader.build_meta(checkpoint.config, "text-generation")
    found = changes(checkpoint.merged, meta)
    plain: Any = {name: name for name in model.state_dict() if name in checkpoint.tensors}
    values = values_of(found, plain, checkpoint)
    return {name: evaluate(values[name], checkpoint) for name in found}


def check(got: Any, wanted: Any, base: Any) -> None:
    """Compare what changed with what should be so, and make sure that nothing else changed."""
    for name, value in wanted.items():
        if name not in got:
            assert torch.equal(value, base[name]), name
            continue
        scale = float(value.abs().max())
        assert float(np.abs(got[name] - value.numpy()).max()) < ROUNDING * scale, name
        assert not torch.equal(value, base[name])


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_are_those_of_peft(models: Models, tmp_path: Path, kind: str) -> None:
    source = models.checkpoint("untied", "llama", tie_word_embeddings=False)
    base = peft_adapters.load(source).state_dict()
    folder = peft_adapters.write(tmp_path / "a", peft_adapters.load(source), **KINDS[kind])
    wanted = merged_by_peft(peft_adapters.load(source), folder)
    check(merged_here(source, [str(folder)], peft_adapters.load(source)), wanted, base)
    # And so does the reference, by code of its own.
    model = peft_adapters.load(source)
    with torch.no_grad():
        adapters.merge(model, [{"folder": str(folder), "weight": 1.0}])
    for name, value in model.state_dict().items():
        assert torch.allclose(value, wanted[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize(("model_type", "owner"), [("qwen3_moe", "mlp.experts."), ("gpt_oss", "")])
def test_experts_that_lie_in_one_parameter(
    models: Models, tmp_path: Path, model_type: str, owner: str
) -> None:
    """Whose matrices a checkpoint has one by one, or together and input-major."""
    source = models.checkpoint(model_type, model_type)
    named = [f"{owner}{name}" for name in ("gate_up_proj", "down_proj")]
    stacked = {"r": 2, "target_modules": ["q_proj"], "target_parameters": named}
    folder = peft_adapters.write(tmp_path / "a", peft_adapters.load(source), **stacked)
    base = peft_adapters.load(source).state_dict()
    wanted = merged_by_peft(peft_adapters.load(source), folder)
    checkpoint = with_adapters(open_checkpoint(str(source)), (str(folder),))
    meta = loader.build_meta(checkpoint.config, "text-generation")
    found = changes(checkpoint.merged, meta)
    made = bindings.bind(meta, checkpoint.logical, [*found]).expressions
    values = values_of(found, made, checkpoint)
    got = {name: evaluate(substitute(made[name], values), checkpoint) for name in found}
    assert sum("experts" in name for name in got) >= 4
    check(got, wanted, base)
    model = peft_adapters.load(source)
    with torch.no_grad():
        adapters.merge(model, [{"folder": str(folder), "weight": 1.0}])
    for name, value in model.state_dict().items():
        assert torch.allclose(value, wanted[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")  # peft sets it
@pytest.mark.filterwarnings("ignore:Adapter 'default'")  # peft takes biases for shards of matrices
@pytest.mark.parametrize("use_dora", [False, True])
def test_matrices_stored_input_major(models: Models, tmp_path: Path, *, use_dora: bool) -> None:
    """And biases of LoRA's own, for which a layer must have one."""
    source = models.checkpoint("gpt2", "gpt2")
    base = peft_adapters.load(source).state_dict()
    targets = ["c_attn", "c_fc", "mlp.c_proj"]
    folder = peft_adapters.write(
        tmp_path / "a",
        peft_adapters.load(source),
        r=4,
        target_modules=targets,
        lora_bias=not use_dora,
        use_dora=use_dora,
    )
    wanted = merged_by_peft(peft_adapters.load(source), folder)
    check(merged_here(source, [str(folder)], peft_adapters.load(source)), wanted, base)


def test_a_weighted_sum(models: Models, tmp_path: Path) -> None:
    """It is the sum of what each adds, which peft calls `cat`; its `linear` mixes both and is no sum of the two."""
    one, two = (
        peft_adapters.write(
            tmp_path / kind.replace(" ", "_"),
            peft_adapters.load(models.llama),
            number,
            **peft_adapters.KINDS[kind],
        )
        for number, kind in enumerate(["attention", "patterns"])
    )
    base = peft_adapters.load(models.llama).state_dict()
    wrapped = PeftModel.from_pretrained(peft_adapters.load(models.llama), str(one), "one")
    wrapped.load_adapter(str(two), "two")
    wanted = dict(base)
    for name, weight in (("one", 0.5), ("two", -2.0)):
        wrapped.set_adapter(name)
        for path, module in wrapped.base_model.model.named_modules():
            if name in getattr(module, "lora_A", {}):
                delta = module.get_delta_weight(name).detach()
                wanted[f"{path}.weight"] = wanted[f"{path}.weight"] + weight * delta
    got = merged_here(models.llama, [f"{one}=0.5", f"{two}=-2"], peft_adapters.load(models.llama))
    check(got, wanted, base)


# --- builds ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merging") / "sql"
    kind = peft_adapters.KINDS["every layer"]
    return peft_adapters.write(folder, peft_adapters.load(models.llama), **kind)


def test_a_build_proves_that_the_adapter_is_inside(
    models: Models,
    home: Path,
    adapter: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reference merges it too, and finds a package without it, or with more of it, wrong."""
    models.trace(models.llama, home)
    requested = f"{adapter}=0.5"
    package = qeff_zoo.build(models.llama, adapter=requested, weights="int8", **SHAPE)
    assert package.validated == "checkpoint"
    assert package.name == "llama + sql"
    assert package.manifest["validation"][0]["against"]["settings"]["adapters"][0].endswith("=0.5")
    assert main(["inspect", str(package.path)]) == 0
    assert ", weight 0.5\n" in capsys.readouterr().out
    (known,) = source_of(package, None).merged  # as `validate PACKAGE` takes it
    assert (known.weight, known.adapter.folder) == (0.5, adapter)
    record = validate(package, models.llama)
    assert not record.passed
    again = qeff_zoo.build(models.llama, adapter=[requested], weights="int8", **SHAPE)
    assert again.build_key == package.build_key
    moved = shutil.copytree(adapter, tmp_path / "moved")
    overwrite(adapter / "adapter_config.json", b'{"peft_type": "LORA", "r": 8, "lora_alpha": 1}')
    with pytest.raises(AdapterError, match=r"but package 'llama \+ sql' was built with sha256"):
        source_of(package, None)
    (known,) = source_of(package, None, [str(moved)]).merged
    assert (known.weight, known.adapter.folder) == (0.5, moved)
    assert main(["validate", str(package.path), "--adapter", str(adapter)]) == 1
    assert "was not merged into 'llama + sql'. Expected those" in capsys.readouterr().err
    shutil.copytree(moved, adapter, dirs_exist_ok=True)


@pytest.mark.parametrize("target", ["openvino", "qnn-htp"])
@pytest.mark.sampled(2)
def test_other_targets_have_the_adapter_inside(
    models: Models, home: Path, adapter: Path, target: str
) -> None:
    """Which the reference says, that merges it by code of its own."""
    models.trace(models.llama, home)
    sizes = {"prefill_seq_len": 4, "ctx_len": 12, "weights": "int8", "target": target}
    package = qeff_zoo.build(models.llama, adapter=str(adapter), **sizes)
    assert package.validated == ("simulated" if target == "qnn-htp" else "checkpoint")


def planned(source: Path, *asked: str, **choices: Any) -> Any:
    request = Request(adapter=asked, **choices)
    checkpoint = with_adapters(open_checkpoint(str(source)), asked)
    return resolve.check(checkpoint, request)


def test_keys_follow_from_what_is_merged(models: Models, adapter: Path, tmp_path: Path) -> None:
    """And from nothing of where it lies; without adapters they are what they were."""
    moved = shutil.copytree(adapter, tmp_path / "elsewhere=1")  # which is no weight
    plans = [
        planned(models.llama, *requested) for requested in ((), (f"{adapter}",), (f"{adapter}=2",))
    ]
    assert len({plan.build_key for plan in plans}) == 3
    assert planned(models.llama, f"{moved}").build_key == plans[1].build_key
    assert planned(models.llama, f"{adapter}=1.0").build_key == plans[1].build_key
    assert "adapters" not in plans[0].spec["sources"]
    assert plans[1].why["sources.adapters"] == "user"


def test_packages_with_adapters_are_another_model(adapter: Path, tmp_path: Path) -> None:
    """A package is used for who asked for the adapters in it, and for nobody else."""
    (source,) = (one.source for one in open_merged([f"{adapter}=2"]))
    sources = {**SPEC["sources"], "adapters": [source]}
    store = Store(tmp_path / "store")
    with store.stage("test") as folder:
        package = fill(folder, spec={**SPEC, "sources": sources})
        store.promote(folder, package.build_key)
    plain, requested, other = (
        resolve_package("org/tiny", wishes, store=store).candidates[0].difference
        for wishes in ({}, {"adapter": (f"{adapter}=2",)}, {"adapter": (f"{adapter}",)})
    )
    name = f"{source['digest'].removeprefix('sha256:')[:16]}"
    assert plain == f"adapter is {name}=2, asked for none"
    assert other == f"adapter is {name}=2, asked for {name}"
    assert requested == ""


def changed(folder: Path, to: Path, tensors: Any = None, **config: Any) -> str:
    shutil.copytree(folder, to)
    settings = json.loads((folder / "adapter_config.json").read_text())
    overwrite(to / "adapter_config.json", json.dumps({**settings, **config}).encode())
    if tensors:
        save_file(
            tensors(load_file(folder / "adapter_model.safetensors")),
            to / "adapter_model.safetensors",
        )
    return str(to)


def renamed(tensors: Any) -> Any:
    return {name.replace("q_proj", "x_proj"): value for name, value in tensors.items()}


def infinite(tensors: Any) -> Any:
    return {name: value * np.float32("inf") for name, value in tensors.items()}


def smaller(tensors: Any) -> Any:
    return {name: value[:, :-8] if "lora_A" in name else value for name, value in tensors.items()}


def stranger(tensors: Any) -> Any:
    return {**tensors, "base_model.model.lm_head.lora_new": np.zeros(1, np.float32)}


def biased(tensors: Any) -> Any:
    (first, *_) = (name for name in tensors if "lora_B" in name)
    return {**tensors, first.replace("weight", "bias"): np.zeros(64, np.float32)}


def replacing(tensors: Any) -> Any:
    return {**tensors, "base_model.model.lm_head.weight": np.zeros((64, 64), np.float32)}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (renamed, {}, r"Cannot merge .* into LlamaForCausalLM: it changes '.*x_proj', which is no layer of it"),
        (infinite, {}, "is infinite or not a number"),
        (smaller, {}, r"its '.*' is from \d+ to \d+, here from"),
        (stranger, {}, "it has 'base_model.model.lm_head.lora_new'"),
        (biased, {"lora_bias": True}, "has a bias, and that layer has none"),
        (replacing, {}, r"its 'lm_head.weight' is \[64, 64\], here"),
        (None, {"use_dora": True}, "has no magnitudes"),
        (None, {"peft_type": "IA3"}, "peft_type is 'IA3'"),
        (None, {"init_lora_weights": "pissa_niter_4"}, "weights that peft made of those of its base"),
        (None, {"use_qalora": True}, "QA-LoRA"),
        (None, {"target_parameters": ["gate_up_proj"]}, "of which it has no matrices"),
    ],
)  # fmt: skip
def test_adapters_that_cannot_be_merged(
    models: Models, adapter: Path, tmp_path: Path, tensors: Any, config: Any, message: str
) -> None:
    """Each by name, and before a weight is read."""
    folder = changed(adapter, tmp_path / "a", tensors, **config)
    meta = loader.build_meta(open_checkpoint(str(models.llama)).config, "text-generation")
    with pytest.raises(AdapterError, match=message):
        changes(open_merged([folder]), meta)


TIED: dict[str, dict[str, Any]] = {
    "saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved alike": {
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("kind", TIED)
def test_tied_weights_are_those_that_peft_computes_with(
    models: Models, tmp_path: Path, kind: str
) -> None:
    """An adapter changes one of them, or both alike; merge_and_unload changes both whatever it is."""
    folder = peft_adapters.write(tmp_path / "a", peft_adapters.load(models.tied), r=4, **TIED[kind])
    unmerged = PeftModel.from_pretrained(peft_adapters.load(models.tied), str(folder)).eval()
    model = peft_adapters.load(models.tied)
    rows, columns = model.lm_head.weight.shape
    with torch.no_grad():
        wanted = {
            "model.embed_tokens.weight": unmerged.get_input_embeddings()(torch.arange(rows)),
            "lm_head.weight": unmerged.get_output_embeddings()(torch.eye(columns)).T,
        }

    checkpoint = with_adapters(open_checkpoint(str(models.tied)), [str(folder)])
    meta = loader.build_meta(checkpoint.config, "text-generation")
    found = changes(checkpoint.merged, meta)
    untied = [name for name, change in found.items() if change.untied]
    assert untied == ([] if kind == "saved alike" else ["lm_head.weight"])
    adapters.merge(model, [checkpoint.merged[0].located])
    for name, value in wanted.items():
        plain = {name: "model.embed_tokens.weight"}
        change = {name: found[name]} if name in found else {}
        mine = values_of(change, plain, checkpoint).get(plain[name], plain[name])
        scale = float(value.abs().max())
        assert float(np.abs(evaluate(mine, checkpoint) - value.numpy()).max()) < ROUNDING * scale
        assert float((model.state_dict()[name] - value).abs().max()) < ROUNDING * scale


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_a_build_unties_what_an_adapter_changes_apart(
    models: Models, home: Path, tmp_path: Path
) -> None:
    folder = peft_adapters.write(
        tmp_path / "a", peft_adapters.load(models.tied), r=4, target_modules=["q_proj", "lm_head"]
    )
    package = qeff_zoo.build(models.tied, adapter=str(folder), **SHAPE)
    assert package.validated == "checkpoint"


def test_what_has_no_weighted_sum(models: Models, adapter: Path, tmp_path: Path) -> None:
    model = peft_adapters.load(models.llama)
    dora = peft_adapters.write(tmp_path / "dora", model, **KINDS["DoRA"])
    for requested in ([f"{dora}=0.5"], [str(dora), str(adapter)]):
        with pytest.raises(
            AdapterError, match=r"scales whole weights \(DoRA\), which has no weighted sum"
        ):
            open_merged(requested)
    for weight in ("0", "nan", "inf"):
        with pytest.raises(AdapterError, match=f"is {weight}; expected a number other than 0"):
            open_merged([f"{adapter}={weight}"])
    with pytest.raises(AdapterError, match="No folder 'nowhere=big'"):
        open_merged(["nowhere=big"])


def test_a_quantized_checkpoint_is_decoded_first(
    models: Models, adapter: Path, tmp_path: Path
) -> None:
    """Weights that stay as they are stored cannot change; those that are rounded again can."""
    source = shutil.copytree(models.llama, tmp_path / "fp8")
    edit_json(
        source / "config.json",
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    with pytest.raises(
        PlanError, match=r"would stay as the checkpoint stores them \(fp8\).* Choose --weights int4"
    ):
        planned(source, str(adapter))
    with pytest.warns(UserWarning, match="all its weights are floats"):  # which no real file has
        plan = planned(source, str(adapter), weights="int4")
    assert plan.spec["quantization"]["weights"] == "int4"


def test_an_adapter_of_another_model(models: Models, adapter: Path, tmp_path: Path) -> None:
    folder = changed(adapter, tmp_path / "a", base_model_name_or_path="org/other")
    ours = planned(models.llama, folder)
    hub = replace(with_adapters(open_checkpoint(str(models.llama)), [folder]), model_id="org/model")
    with pytest.warns(UserWarning, match=r"names 'org/other' as its base, .* with 'org/model'"):
        assert graphs.changes_of(ours, hub)
    assert graphs.changes_of(ours, replace(hub, model_id="org/OTHER"))


def test_names_that_still_have_the_adapters_own(
    models: Models, adapter: Path, tmp_path: Path
) -> None:
    """Other tools save `lora_A.default.weight`, which peft itself leaves unread."""
    saved = peft_adapters.write(
        tmp_path / "saved", peft_adapters.load(models.llama), **KINDS["saved modules"]
    )

    def with_name(tensors: Any) -> Any:
        return {
            re.sub(r"(lora_[AB])(?=\.)", r"\1.default", name).replace(
                "lm_head.weight", "lm_head.modules_to_save.default.weight"
            ): value
            for name, value in tensors.items()
        }

    for number, source in enumerate((adapter, saved)):
        folder = changed(source, tmp_path / f"{number}", with_name)
        plain = load_file(source / "adapter_model.safetensors")
        (one,) = open_merged([folder])
        assert sorted(plain) != sorted(load_file(Path(folder) / "adapter_model.safetensors"))
        model, other = (peft_adapters.load(models.llama) for _ in range(2))
        meta = loader.build_meta(open_checkpoint(str(models.llama)).config, "text-generation")
        assert changes([one], meta).keys() == changes(open_merged([str(source)]), meta).keys()
        for each, at in ((model, source), (other, Path(folder))):
            adapters.merge(each, [{"folder": str(at), "weight": 1.0}])
        assert all(
            torch.equal(value, other.state_dict()[name])
            for name, value in model.state_dict().items()
        )


def test_matrices_of_integers(adapter: Path, tmp_path: Path) -> None:
    folder = changed(
        adapter, tmp_path / "a", lambda tensors: {k: v.astype(np.int8) for k, v in tensors.items()}
    )
    with pytest.raises(AdapterError, match=r"its tensor '.*' is I8; expected one of F64, F32"):
        open_merged([folder])[0].adapter.modules  # noqa: B018


def test_repeated_heads_and_cut_matrices_are_of_the_merged_ones(
    models: Models, adapter: Path
) -> None:
    """Any part of a sum is the sum of parts."""
    checkpoint = with_adapters(open_checkpoint(str(models.llama)), [str(adapter)])
    meta = loader.build_meta(checkpoint.config, "text-generation")
    name = "model.layers.1.mlp.down_proj.weight"
    value = values_of(changes(checkpoint.merged, meta), {name: name}, checkpoint)[name]
    whole = evaluate(value, checkpoint)
    pieces = expressions.cut(1, 8, 24, expressions.cut(0, 4, 20, value))
    assert np.allclose(evaluate(pieces, checkpoint), whole[4:20, 8:24], atol=1e-6)
    turned = expressions.transpose(0, 1, pieces)
    assert np.allclose(evaluate(turned, checkpoint), whole[4:20, 8:24].T, atol=1e-6)
    lengths = np.linalg.norm(whole, axis=1)
    scaled = expressions.scaled_to(0, value, "model.layers.0.input_layernorm.weight")
    norms = checkpoint.read("model.layers.0.input_layernorm.weight")
    assert np.allclose(evaluate(scaled, checkpoint), whole * (norms / lengths)[:, None], atol=1e-5)
    across = expressions.cut(1, 3, 9, expressions.transpose(0, 1, scaled))
    assert np.allclose(evaluate(across, checkpoint), evaluate(scaled, checkpoint)[3:9].T, atol=1e-6)
