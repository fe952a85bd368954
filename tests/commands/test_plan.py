# SPDX-License-Identifier: Apache-2.0
"""Every choice with who made it, all conflicts at once, and a key that is the same on every machine."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint

from qeff_zoo import registry, targets, versions
from qeff_zoo.checkpoint import processors, text
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.export import transforms
from qeff_zoo.graph.numerics import MIXED_BITS
from qeff_zoo.plan import resolve as plans
from qeff_zoo.plan import spec
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import DECISIONS, GIVEN, check, resolve
from qeff_zoo.recipe import Shape
from qeff_zoo.registry import find_recipe
from qeff_zoo.targets.base import Resolved

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}
UNBOUNDED = {key: LLAMA[key] for key in LLAMA if key != "max_position_embeddings"}
BERT: Mapping[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 64,
    "max_position_embeddings": 512,
}
WEIGHTS = "sha256:" + "7" * 64
TOOLS = {
    "torch": "2.13.0+cpu",
    "transformers": "5.23.0",
    "onnx": "1.23.2",
    "onnx-ir": "1.1.0",
    "onnxscript": "0.7.2",
    "onnxruntime": "1.31.1",
    "tokenizers": "0.23.3",
}


GOLDEN = {
    "llama": "qz1-842a1cf5468d7594f4016fba7d6a56cadd7389f8a5adb48887c44783ba050586",
    "slots": "qz1-fb0e07213793d60103219f59c6d7ebbc9da027089e558674222af74c59a3c00a",
    "bert": "qz1-2bd1f690766cd540316299c0edd997e608feee1516d2ce35ebf5856840419cf8",
    "graph": "qg1-7e992d79251726048c6ec2094ce89c1ca725bd6a86d84ce863e678eb40b108cc",
}

Open = Callable[..., Checkpoint]


@pytest.fixture(autouse=True)
def _toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with a toolchain that does not change."""
    monkeypatch.setattr(versions, "version", TOOLS.__getitem__)


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Give a function that writes and opens a checkpoint: a config, changes to it, files beside it."""

    def open_one(
        config: Mapping[str, Any] = LLAMA, files: Mapping[str, str] | None = None, **changes: Any
    ) -> Checkpoint:
        folder = tmp_path / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        content = {"config.json": json.dumps({**config, **changes}), **(files or {})}
        encoded = {name: text.encode() for name, text in content.items()}
        tiny_checkpoint.write(folder, {**encoded, **tiny_checkpoint.weights()})
        return open_checkpoint(str(folder))

    return open_one


def problems(checkpoint: Checkpoint, **request: Any) -> list[str]:
    with pytest.raises(PlanError) as caught:
        resolve(checkpoint, Request(**request), WEIGHTS)
    return caught.value.problems


def graph_key(plan: Plan, structure: str) -> str:
    (program,) = plan.programs
    return plan.graph_key(program, structure)


def chosen(plan: Plan) -> dict[str, tuple[Any, str]]:
    return {name: (field["value"], field["by"]) for name, field in plan.explained().items()}


# --- who chose what ------------------------------------------------------------------------------


def test_without_a_request_the_recipe_chooses(opened: Open) -> None:
    plan = resolve(opened(), Request(), WEIGHTS)
    assert plan.programs[0].shape == Shape(prefill_seq_len=128, ctx_len=4096, batch_size=1)
    assert (plan.target, plan.programs[0].weights.bits) == ("ort", 32)
    fields = chosen(plan)
    assert fields["shape.prefill_seq_len"] == (128, "recipe:latency")
    assert fields["shape.ctx_len"] == (4096, "recipe:latency")
    assert fields["shape.batch_size"] == (1, "recipe:latency")
    assert fields["target.name"] == ("ort", "default")
    assert fields["quantization.weights"] == ("fp32", "default")
    assert fields["task.name"] == ("text-generation", "checkpoint: architectures")
    assert fields["sources.model.weights"] == (WEIGHTS, "derived")
    assert fields["toolchain.torch"] == ("2.13.0", "derived")
    assert not any("full_batch_size" in name or "seq_lens" in name for name in fields)


def test_a_profile_chooses(opened: Open) -> None:
    plan = resolve(opened(), Request(profile="throughput"), WEIGHTS)
    assert chosen(plan)["shape.full_batch_size"] == (16, "recipe:throughput")
    assert plan.programs[0].variant == {"continuous_batching": True}
    assert plan.spec["task"]["continuous_batching"] is True


def test_the_user_chooses_before_the_profile(opened: Open) -> None:
    request = Request(profile="throughput", full_batch_size=4, ctx_len=512, weights="int4")
    fields = chosen(resolve(opened(), request, WEIGHTS))
    assert fields["shape.full_batch_size"] == (4, "user")
    assert fields["shape.ctx_len"] == (512, "user")
    assert fields["shape.prefill_seq_len"] == (128, "recipe:throughput")
    assert fields["quantization.weights"] == ("int4", "user")


def test_a_batch_size_turns_slots_off(opened: Open) -> None:
    plan = resolve(opened(), Request(profile="throughput", batch_size=4), WEIGHTS)
    assert plan.programs[0].shape.full_batch_size is None
    assert plan.programs[0].shape.batch_size == 4
    assert plan.programs[0].variant == {}


def test_positions_shorten_default_lengths(opened: Open) -> None:
    plan = resolve(opened(max_position_embeddings=100), Request(), WEIGHTS)
    fields = chosen(plan)
    assert fields["shape.ctx_len"] == (100, "derived: 100 positions")
    assert fields["shape.prefill_seq_len"] == (100, "derived: fits ctx_len")


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, 1024),
        ({**UNBOUNDED, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 2048),
    ],
    ids=["a table of them", "dynamic RoPE"],
)
def test_positions_that_a_config_leaves_out_are_those_of_its_class(
    opened: Open, config: Mapping[str, Any], positions: int
) -> None:
    """A longer package read beyond the table, or rotated with another base than transformers."""
    plan = resolve(opened(config), Request(profile="long"), WEIGHTS)
    assert plan.programs[0].shape.ctx_len == positions
    (problem,) = problems(opened(config), ctx_len=positions + 1)
    assert problem.startswith(f"--ctx-len is {positions + 1}, but 'checkpoint' has {positions}")


def test_a_short_context_shortens_the_prompt_part(opened: Open) -> None:
    fields = chosen(resolve(opened(), Request(ctx_len=64), WEIGHTS))
    assert fields["shape.ctx_len"] == (64, "user")
    assert fields["shape.prefill_seq_len"] == (64, "derived: fits ctx_len")


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 1000}, 1000),
        ({"max_position_embeddings": None, "n_positions": 700}, 700),
        (
            {
                "max_position_embeddings": 1000,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 500,
                },
            },
            2000,
        ),
        (
            {
                "max_position_embeddings": 4000,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 400,
                },
            },
            4000,
        ),
        (
            {"max_position_embeddings": 1000, "rope_scaling": {"type": "linear", "factor": 4.0}},
            1000,
        ),
    ],
)
def test_positions_of_a_model(opened: Open, config: dict[str, Any], positions: int) -> None:
    checkpoint = opened(**config)
    assert (
        resolve(checkpoint, Request(ctx_len=positions), WEIGHTS).programs[0].shape.ctx_len
        == positions
    )
    (problem,) = problems(checkpoint, ctx_len=positions + 1)
    assert f"has {positions} positions" in problem


def test_an_encoder_takes_lengths_that_fit(opened: Open) -> None:
    plan = resolve(opened(BERT, max_position_embeddings=200), Request(), WEIGHTS)
    assert plan.programs[0].shape == Shape(seq_lens=(32, 128, 200))  # the model's longest text fits
    assert chosen(plan)["shape.seq_lens"][1] == "derived: 200 positions"
    plan = resolve(opened(BERT, max_position_embeddings=20), Request(), WEIGHTS)
    assert plan.programs[0].shape.seq_lens == (20,)
    plan = resolve(opened(BERT), Request(seq_lens=(64, 16, 64)), WEIGHTS)
    assert plan.programs[0].shape.seq_lens == (16, 64)
    assert chosen(plan)["shape.seq_lens"][1] == "user"
    assert not any("ctx_len" in name or "prefill" in name for name in chosen(plan))


def test_positions_that_begin_behind_the_padding_id(opened: Open) -> None:
    roberta = {**BERT, "model_type": "roberta", "architectures": ["RobertaModel"]}
    checkpoint = opened(roberta, max_position_embeddings=514, pad_token_id=1)
    assert resolve(checkpoint, Request(seq_lens=(512,)), WEIGHTS).programs[0].shape.seq_lens == (
        512,
    )
    (problem,) = problems(checkpoint, seq_lens=(513,))
    assert "has 512 positions" in problem
    plan = resolve(opened(roberta, max_position_embeddings=40), Request(), WEIGHTS)
    assert plan.programs[0].shape.seq_lens == (32, 38)
    plan = resolve(opened(roberta, max_position_embeddings=33), Request(), WEIGHTS)
    assert plan.programs[0].shape.seq_lens == (31,)


POOLING_OF_LAST = {
    "modules.json": json.dumps(
        [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ),
    "1_Pooling/config.json": '{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}',
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
MODULES = {"modules.json": "[]"}


@pytest.mark.parametrize(
    ("config", "files", "asked", "task", "by"),
    [
        (BERT, {}, None, "feature-extraction", "checkpoint: architectures"),
        ({**BERT, "architectures": None}, {}, None, "feature-extraction", "recipe"),
        (
            {**BERT, "architectures": ["BertForMaskedLM"]},
            {},
            "feature-extraction",
            "feature-extraction",
            "user",
        ),
        (
            {**BERT, "architectures": ["BertForSequenceClassification"]},
            MODULES,
            None,
            "text-classification",
            "checkpoint: architectures",
        ),
        (
            {**BERT, "architectures": ["BertForTokenClassification"]},
            {},
            None,
            "token-classification",
            "checkpoint: architectures",
        ),
        (
            {**BERT, "architectures": ["BertForTokenClassification"]},
            {},
            "feature-extraction",
            "feature-extraction",
            "user",
        ),
        (QWEN3, {}, None, "text-generation", "checkpoint: architectures"),
        (QWEN3, POOLING_OF_LAST, None, "feature-extraction", "checkpoint: modules.json"),
        (QWEN3, POOLING_OF_LAST, "text-generation", "text-generation", "user"),
        (
            {**QWEN3, "architectures": ["Qwen3Model"]},
            {},
            None,
            "feature-extraction",
            "checkpoint: architectures",
        ),
        (
            {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"], "pad_token_id": 0},
            {},
            None,
            "text-classification",
            "checkpoint: architectures",
        ),
    ],
)
def test_who_chooses_the_task(
    opened: Open,
    config: dict[str, Any],
    files: dict[str, str],
    asked: str | None,
    task: str,
    by: str,
) -> None:
    plan = resolve(opened(config, files), Request(task=asked), WEIGHTS)
    assert chosen(plan)["task.name"] == (task, by)
    assert plan.recipe.task == plan.spec["task"]["name"] == task
    assert bool(plan.programs[0].shape.seq_lens) == (task != "text-generation")


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (
            {"model_type": "lfm2", "architectures": ["Lfm2Model"]},
            r"serves text-generation\. Run the model with sentence-transformers itself\.",
        ),
        (
            {"model_type": "clip", "architectures": ["CLIPModel"]},
            "itself, or build it without its modules with --task image-feature-extraction or zero-shot",
        ),
    ],
)
def test_modules_that_no_task_computes_are_refused(
    opened: Open, config: dict[str, Any], advice: str
) -> None:
    with pytest.raises(PlanError, match=advice):
        resolve(opened({**LLAMA, **config}, MODULES), Request(), WEIGHTS)


def test_the_last_token_is_pooled_by_the_checkpoints_setting(opened: Open) -> None:
    plan = resolve(opened(QWEN3, POOLING_OF_LAST), Request(), WEIGHTS)
    assert plan.spec["task"] == {
        "name": "feature-extraction",
        "pooling": "lasttoken",
        "normalize": True,
    }
    newer = {**POOLING_OF_LAST, "1_Pooling/config.json": '{"pooling_mode": "lasttoken"}'}
    plan = resolve(opened(QWEN3, newer), Request(), WEIGHTS)
    assert plan.spec["task"]["pooling"] == "lasttoken"


def test_keys_change_with_the_task(opened: Open) -> None:
    both = ["Qwen3ForCausalLM", "Qwen3ForSequenceClassification"]
    checkpoint = opened(QWEN3, architectures=both, pad_token_id=0)
    tasks = ("text-generation", "feature-extraction", "text-classification")
    plans_ = [resolve(checkpoint, Request(task=task), WEIGHTS) for task in tasks]
    assert len({plan.build_key for plan in plans_}) == 3
    assert len({graph_key(plan, "sha256:" + "1" * 64) for plan in plans_}) == 3


POOLING = {
    "modules.json": json.dumps(
        [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ),
    "1_Pooling/config.json": json.dumps(
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    ),
}


def test_pooling_comes_from_the_files_beside_the_checkpoint(opened: Open) -> None:
    assert resolve(opened(BERT), Request(), WEIGHTS).programs[0].variant == {
        "pooling": "mean",
        "normalize": False,
    }
    plan = resolve(opened(BERT, POOLING), Request(), WEIGHTS)
    assert plan.programs[0].variant == {"pooling": "cls", "normalize": True}
    assert chosen(plan)["task.pooling"] == ("cls", "checkpoint: modules.json")
    plan = resolve(opened(BERT, POOLING), Request(pooling="max", normalize=False), WEIGHTS)
    assert plan.programs[0].variant == {"pooling": "max", "normalize": False}
    assert chosen(plan)["task.normalize"] == (False, "user")


def test_latents_are_expanded_on_request(opened: Open) -> None:
    tiny = find_recipe("minicpm3").tiny[0].config
    checkpoint = opened(
        {**tiny, "model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"]}
    )
    plans_ = [
        resolve(checkpoint, Request(expanded_kv=requested), WEIGHTS)
        for requested in (None, False, True)
    ]
    assert [plan.programs[0].variant for plan in plans_] == [{}, {}, {"expanded_kv": True}]
    assert plans_[0].build_key == plans_[1].build_key != plans_[2].build_key
    assert chosen(plans_[2])["task.expanded_kv"] == (True, "user")


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters", "by layer"])
def test_a_base_that_follows_the_length_ends_the_context(opened: Open, where: str) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 512}
    given = {"rope_parameters": {"full_attention": scaling}} if where == "by layer" else {}
    config = {**LLAMA, "max_position_embeddings": 512, **(given or {where: scaling})}
    checkpoint = opened(config)
    assert resolve(checkpoint, Request(ctx_len=512), WEIGHTS).programs[0].shape.ctx_len == 512
    (problem,) = problems(checkpoint, ctx_len=513)
    assert "has 512 positions, and beyond them its RoPE (rope_type 'dynamic')" in problem


def test_longrope_takes_one_set_of_factors(opened: Open) -> None:
    """As vLLM: the long ones where the context exceeds the original one, unless a build chooses."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = {
        **LLAMA,
        "max_position_embeddings": 2048,
        "original_max_position_embeddings": 512,
        "rope_scaling": scaling,
    }
    checkpoint = opened(config)
    within, beyond, chosen_, twice = (
        resolve(checkpoint, Request(ctx_len=length, rope_factors=factors), WEIGHTS)
        for length, factors in ((512, None), (513, None), (513, "short"), (513, "long"))
    )
    assert chosen(within)["task.rope_factors"] == (
        "short",
        "derived: 512 tokens, 512 originally",
    )
    assert chosen(beyond)["task.rope_factors"] == ("long", "derived: 513 tokens, 512 originally")
    assert chosen(chosen_)["task.rope_factors"] == ("short", "user")
    assert chosen_.build_key != beyond.build_key == twice.build_key
    variants = [plan.programs[0].variant for plan in (within, beyond, chosen_, twice)]
    assert variants == [{}, {}, {"rope_factors": "short"}, {}]
    (problem,) = problems(checkpoint, rope_factors="medium")
    assert "short" in problem
    (problem,) = problems(opened(LLAMA), rope_factors="short")
    assert "--rope-factors is for longrope" in problem


CONTEXT_LENGTHS = ("comp_ctx_lengths_prefill", "comp_ctx_lengths_decode")


def test_compute_contexts_end_with_the_whole_context(opened: Open) -> None:
    """Both kinds of calls have a list as soon as one is given; naming `ctx_len` says nothing new."""
    checkpoint, sizes = opened(), {"ctx_len": 1024, "prefill_seq_len": 32}
    without = resolve(checkpoint, Request(**sizes), WEIGHTS)
    assert not any(name in str(without.spec) for name in ("comp_ctx", *CONTEXT_LENGTHS))
    requested = [
        {CONTEXT_LENGTHS[1]: (256, 512)},
        {CONTEXT_LENGTHS[1]: (256, 512, 1024)},
        {CONTEXT_LENGTHS[0]: (), CONTEXT_LENGTHS[1]: [256, 512]},
        {CONTEXT_LENGTHS[0]: (1024,), CONTEXT_LENGTHS[1]: (256, 512)},
    ]
    every = [resolve(checkpoint, Request(**sizes, **lists), WEIGHTS) for lists in requested]
    assert len({plan.build_key for plan in every} | {without.build_key}) == 2
    assert {tuple(chosen(plan)[f"shape.{CONTEXT_LENGTHS[1]}"]) for plan in every} == {
        ((256, 512, 1024), "user")
    }
    assert [chosen(plan)[f"shape.{CONTEXT_LENGTHS[0]}"] for plan in every[:1]] == [
        ((1024,), "derived: fits ctx_len")
    ]
    assert every[0].programs[0].variant == {"comp_ctx_lengths": True}
    structure = "sha256:" + "1" * 64
    assert graph_key(every[0], structure) != graph_key(without, structure)


def test_compute_contexts_of_a_recipe_that_do_not_fit_are_dropped(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = find_recipe("llama")
    shape = Shape(
        prefill_seq_len=32,
        ctx_len=4096,
        comp_ctx_lengths_prefill=(64, 1024, 4096),
        comp_ctx_lengths_decode=(16, 512, 4096),
    )
    given_ = replace(recipe, shapes={"latency": shape})
    monkeypatch.setattr(plans, "recipe_of", lambda checkpoint: given_)
    request = Request(ctx_len=600, prefill_seq_len=100)
    fields = chosen(resolve(opened(), request, WEIGHTS))
    assert fields[f"shape.{CONTEXT_LENGTHS[0]}"] == ((600,), "recipe:latency")
    assert fields[f"shape.{CONTEXT_LENGTHS[1]}"] == ((16, 512, 600), "recipe:latency")
    off = resolve(opened(), replace(request, **dict.fromkeys(CONTEXT_LENGTHS, ())), WEIGHTS)
    assert not any(name.endswith(CONTEXT_LENGTHS) for name in chosen(off))


# --- conflicts -----------------------------------------------------------------------------------

CONFLICTS: Mapping[str, tuple[Mapping[str, Any], dict[str, Any], str]] = {
    "target": (LLAMA, {"target": "tpu"}, "--target is 'tpu', expected one of ort"),
    "weights": (
        LLAMA,
        {"weights": "int3"},
        "--weights is 'int3', expected one of fp32, int8, int4",
    ),
    "blocks": (
        LLAMA,
        {"weights": "int4", "block_size": 48},
        "--block-size is 48, expected one of 32, 64, 128",
    ),
    "blocks of floats": (LLAMA, {"block_size": 64}, "--block-size applies to int8 and int4"),
    "profile": (LLAMA, {"profile": "fast"}, "--profile is 'fast', but recipe 'llama' has latency"),
    "context": (LLAMA, {"ctx_len": 8193}, "--ctx-len is 8193, but 'checkpoint' has 8192 positions"),
    "prompt": (
        LLAMA,
        {"prefill_seq_len": 65, "ctx_len": 64},
        "--prefill-seq-len is 65, more than the context of 64",
    ),
    "both batches": (
        LLAMA,
        {"batch_size": 2, "full_batch_size": 4},
        "--batch-size 2 and --full-batch-size 4 exclude each other",
    ),
    "no context": (LLAMA, {"ctx_len": 0}, "--ctx-len is 0, expected at least 1"),
    "negative prompt": (
        LLAMA,
        {"prefill_seq_len": -5},
        "--prefill-seq-len is -5, expected at least",
    ),
    "no batch": (LLAMA, {"batch_size": 0}, "--batch-size is 0, expected at least 1"),
    "no slots": (LLAMA, {"full_batch_size": 0}, "--full-batch-size is 0, expected at least 1"),
    "lengths of a decoder": (LLAMA, {"seq_lens": (32,)}, "--seq-lens does not apply to text-gener"),
    "pooling of a decoder": (LLAMA, {"pooling": "cls"}, "--pooling does not apply to text-generat"),
    "normalizing a decoder": (
        LLAMA,
        {"normalize": False},
        "--normalize does not apply to text-gen",
    ),
    "latents of a model without": (
        LLAMA,
        {"expanded_kv": True},
        "--expanded-kv is for latent attent",
    ),
    "latents of an encoder": (
        BERT,
        {"expanded_kv": True},
        "--expanded-kv does not apply to feature",
    ),
    "context of an encoder": (BERT, {"ctx_len": 64}, "--ctx-len does not apply to feature-extract"),
    "prompt of an encoder": (BERT, {"prefill_seq_len": 8}, "--prefill-seq-len does not apply to"),
    "slots of an encoder": (BERT, {"full_batch_size": 8}, "--full-batch-size does not apply to"),
    "compute contexts that do not ascend": (
        LLAMA,
        {"comp_ctx_lengths_decode": (512, 256)},
        "--comp-ctx-lengths-decode is [512, 256], expected ascending lengths",
    ),
    "compute contexts twice": (
        LLAMA,
        {"comp_ctx_lengths_prefill": (256, 256)},
        "--comp-ctx-lengths-prefill is [256, 256], expected ascending lengths",
    ),
    "no compute context": (
        LLAMA,
        {"comp_ctx_lengths_decode": (0, 256)},
        "--comp-ctx-lengths-decode has 0, expected at least 2",
    ),
    "compute context of less than a call": (
        LLAMA,
        {"comp_ctx_lengths_prefill": (64, 256)},
        "--comp-ctx-lengths-prefill has 64, expected at least 128",
    ),
    "compute context beyond the context": (
        LLAMA,
        {"comp_ctx_lengths_decode": (512, 1025), "ctx_len": 1024},
        "--comp-ctx-lengths-decode has 1025, more than the context of 1024",
    ),
    "compute context of an encoder": (
        BERT,
        {"comp_ctx_lengths_decode": (64,)},
        "--comp-ctx-lengths-decode does not apply to feature-extraction",
    ),
    "compute context of recurrent states": (
        {**LLAMA, "model_type": "mamba", "architectures": ["MambaForCausalLM"]},
        {"comp_ctx_lengths_decode": (64,)},
        "--comp-ctx-lengths-decode is for a cache that grows with the context, but 'mamba' keeps windows and",
    ),
    "long text": (
        BERT,
        {"seq_lens": (32, 513)},
        "--seq-lens has 513, but 'checkpoint' has 512 pos",
    ),
    "no text": (
        BERT,
        {"seq_lens": (0, 32)},
        "--seq-lens is [0, 32], expected lengths of at least 1",
    ),
    "no lengths": (BERT, {"seq_lens": ()}, "--seq-lens is [], expected lengths of at least 1"),
    "pooling": (BERT, {"pooling": "sum"}, "--pooling is 'sum', expected one of cls, max, mean"),
    "architecture": (
        {**LLAMA, "architectures": ["LlamaForTokenClassification"]},
        {},
        "has architecture 'LlamaForTokenClassification', but recipe 'llama' covers LlamaForCausalLM",
    ),
    "task of another recipe": (
        LLAMA,
        {"task": "token-classification"},
        "for 'token-classification' (user), but recipe 'llama' serves text-generation, text-classification",
    ),
    "task without a head": (
        BERT,
        {"task": "text-classification"},
        "no head for 'text-classification' (user); expected BertForSequenceClassification. Choose feature-ext",
    ),
    "padding of a decoder that classifies": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
        {},
        "has no pad_token_id in config.json",
    ),
    "context of a classifier": (
        {**BERT, "architectures": ["BertForTokenClassification"]},
        {"ctx_len": 64},
        "--ctx-len does not apply to token-classification",
    ),
    "pooling of a classifier": (
        {**BERT, "architectures": ["BertForSequenceClassification"]},
        {"pooling": "cls"},
        "--pooling does not apply to text-classification",
    ),
    "quantized": (
        {**LLAMA, "quantization_config": {"quant_method": "aqlm"}},
        {},
        "is quantized with 'aqlm'; auto-round, awq, ",
    ),
    "not quantized": (
        LLAMA,
        {"weights": "stored"},
        "--weights is 'stored', but 'checkpoint' is not quantized",
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflict(opened: Open, name: str) -> None:
    config, request, expected = CONFLICTS[name]
    (problem,) = problems(opened(config), **request)
    assert expected in problem
    assert problem[0] in "-'"
    assert problem.endswith(".")


def test_all_conflicts_are_reported_at_once(opened: Open) -> None:
    checkpoint = opened(
        architectures=["LlamaForTokenClassification"],
        quantization_config={"quant_method": "spqr"},
    )
    found = problems(
        checkpoint,
        target="tpu",
        task="summarization",
        weights="int3",
        profile="fast",
        ctx_len=9000,
        prefill_seq_len=10_000,
        batch_size=2,
        full_batch_size=3,
        seq_lens=(4,),
        pooling="cls",
        normalize=True,
    )
    assert len(found) == len(set(found)) == 12
    for word in (
        "--task",
        *("LlamaForTokenClassification", "spqr", "tpu", "int3", "fast", "9000", "--seq-lens"),
        *("--prefill-seq-len", "exclude", "--pooling", "--normalize"),
    ):
        assert sum(word in problem for problem in found) >= 1, word
    with pytest.raises(PlanError) as caught:
        resolve(checkpoint, Request(weights="int3"), WEIGHTS)
    assert str(caught.value) == "\n".join(caught.value.problems)


def test_an_unknown_model_type_is_refused_first(opened: Open) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'lama'\. Did you mean 'llama'"):
        resolve(opened(model_type="lama"), Request(weights="int3"), WEIGHTS)


def test_code_of_a_checkpoint_is_refused_by_name(opened: Open) -> None:
    checkpoint = opened(
        model_type="own_model", auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    )
    with pytest.raises(UnsupportedModelError) as caught:
        resolve(checkpoint, Request(), WEIGHTS)
    message = str(caught.value)
    assert message.startswith(
        "'checkpoint' needs Python code of its own (`auto_map` in config.json)"
    )
    assert "never run" in message
    assert "'own_model'" in message


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("microsoft/Florence-2-base", "florence-community/Florence-2-base"),
        ("microsoft/Florence-2-large-ft", "florence-community/Florence-2-large-ft"),
        ("Florence-2-base", "florence-community/Florence-2-base"),
        ("deepseek-ai/Janus-Pro-1B", "deepseek-community/Janus-Pro-1B"),
        ("stepfun-ai/GOT-OCR2_0", "stepfun-ai/GOT-OCR-2.0-hf"),
        ("liuhaotian/llava-v1.6-mistral-7b", "llava-hf/llava-v1.6-mistral-7b-hf"),
    ],
)
def test_a_checkpoint_in_its_authors_form_names_the_other(
    opened: Open, name: str, instead: str
) -> None:
    checkpoint = opened(model_type="florence2", auto_map={"AutoModelForCausalLM": "a.B"})
    checkpoint = replace(checkpoint, name=name, model_id=name if "/" in name else None)
    with pytest.raises(UnsupportedModelError, match=f"Build '{instead}', which has the same"):
        resolve(checkpoint, Request(), WEIGHTS)


def test_a_folder_with_the_name_of_such_a_checkpoint_may_be_in_transformers_form(
    opened: Open,
) -> None:
    checkpoint = replace(opened(), name="Florence-2-base")
    assert resolve(checkpoint, Request(), WEIGHTS).recipe.model_type == "llama"


def test_code_beside_a_model_that_transformers_has_is_not_needed(opened: Open) -> None:
    checkpoint = opened(auto_map={"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"})
    assert resolve(checkpoint, Request(), WEIGHTS).recipe.model_type == "llama"


def test_a_checkpoint_without_architectures_is_taken_at_its_model_type(opened: Open) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert resolve(opened(config), Request(), WEIGHTS).recipe.model_type == "llama"


# --- decisions -----------------------------------------------------------------------------------


def test_every_decision_requires_what_earlier_ones_provide() -> None:
    known = {*GIVEN}
    for decision in DECISIONS:
        name = decision.decide.__name__
        assert not {*decision.requires} - known, f"{name} requires what nothing before it provides."
        assert not {*decision.provides} & known, f"{name} provides what is known already."
        known |= {*decision.provides}
    required = {fact for decision in DECISIONS for fact in decision.requires}
    assert {*GIVEN} <= required


def test_a_decision_provides_what_it_declares_and_changes_nothing(opened: Open) -> None:
    facts: dict[str, Any] = {
        "checkpoint": opened(),
        "request": Request(),
        "architecture": find_recipe("llama"),
    }
    for decision in DECISIONS:
        arguments = {name: facts[name] for name in decision.requires}
        first, second = (decision.decide(**arguments) for _ in range(2))
        assert {*first.facts} == {*decision.provides}, decision.decide.__name__
        assert (first.value, first.why, first.problems) == (
            second.value,
            second.why,
            second.problems,
        )
        facts |= first.facts


def test_check_before_weights_are_hashed_returns_the_plan(opened: Open) -> None:
    checkpoint, request = opened(), Request(weights="int8", ctx_len=64)
    assert check(checkpoint, request).of_weights(WEIGHTS) == resolve(checkpoint, request, WEIGHTS)


# --- targets and programs ------------------------------------------------------------------------


def test_a_target_accepts_its_declared_options(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = replace(targets.find("ort"), name="other", weights=("fp32",))
    monkeypatch.setattr(targets, "find", lambda name: fewer)
    (problem,) = problems(opened(), weights="int8")
    assert problem == "--weights is 'int8', but target 'other' takes fp32. Choose one."
    assert resolve(opened(), Request(), WEIGHTS).target == "other"


def test_the_target_is_resolved_into_the_plan(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = resolve(opened(), Request(), WEIGHTS)
    assert plain.spec["target"] == {"name": "ort", "revision": targets.find("ort").revision}
    assert plain.resolved.needs == {"onnxruntime": f">={TOOLS['onnxruntime']}"}

    class Newer(type(targets.find("ort"))):  # type: ignore[misc]
        def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
            return Resolved(toolchain={"sdk": "2.1"}, needs={})

    monkeypatch.setattr(targets, "find", lambda name: Newer(revision=7))
    plan = resolve(opened(), Request(), WEIGHTS)
    assert plan.spec["target"] == {"name": "ort", "revision": 7}
    assert (plan.spec["toolchain"]["sdk"], plan.programs[0].flags) == ("2.1", {})
    assert plan.build_key != plain.build_key
    assert graph_key(plan, "sha256:" + "1" * 64) == graph_key(plain, "sha256:" + "1" * 64)


def test_transforms_of_every_model_have_a_version(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(opened(), Request(), WEIGHTS)
    names = [one["name"] for one in plan.spec["recipe"]["transforms"]]
    assert names == ["attention", "rope", *(one.name for one in find_recipe("llama").transforms)]
    changed = {**transforms.ALWAYS, "rope": 99}
    monkeypatch.setattr(transforms, "ALWAYS", changed)
    assert resolve(opened(), Request(), WEIGHTS).build_key != plan.build_key


def test_a_plain_recipe_is_one_program(opened: Open) -> None:
    (decoder,) = resolve(opened(), Request(), WEIGHTS).programs
    assert (decoder.role, decoder.task) == ("decoder", "text-generation")
    assert [one["name"] for one in decoder.specializations] == ["Prefill", "Decode"]
    (encoder,) = resolve(opened(BERT), Request(weights="int4"), WEIGHTS).programs
    assert (encoder.role, encoder.task) == ("encoder", "feature-extraction")
    assert [one["name"] for one in encoder.specializations] == [f"Embedding_{n}" for n in range(4)]
    assert (encoder.weights.bits, encoder.weights.block) == (4, 32)


def test_a_recipe_declares_options_of_a_target(opened: Open) -> None:
    """Gemma 3 overflows float16 on Cloud AI 100: its norms and residual additions are float32, unless overridden."""
    config = {**find_recipe("gemma3_text").tiny[0].config, "model_type": "gemma3_text"}
    checkpoint = opened({**config, "architectures": ["Gemma3ForCausalLM"]})
    plan = resolve(checkpoint, Request(target="qaic"), WEIGHTS)
    assert plan.programs[0].flags["node_precision_info"] == ("Add", "CustomRMSNorm")
    assert "recipe" in [by for path, by in plan.why.items() if path.endswith("node_precision_info")]
    request = Request(target="qaic", node_precision_info=("Softmax",))
    assert resolve(checkpoint, request, WEIGHTS).programs[0].flags["node_precision_info"] == (
        "Softmax",
    )
    assert "node_precision_info" not in resolve(checkpoint, Request(), WEIGHTS).programs[0].flags


# --- the key -------------------------------------------------------------------------------------


def test_golden_build_keys(opened: Open) -> None:
    """A change here renames every package there is: raise `EXPORTER_REVISION` or a `rev` instead."""
    llama = resolve(opened(), Request(), WEIGHTS)
    slots = resolve(opened(), Request(profile="throughput", weights="int4"), WEIGHTS)
    bert = resolve(opened(BERT), Request(), WEIGHTS)
    assert {
        "llama": llama.build_key,
        "slots": slots.build_key,
        "bert": bert.build_key,
        "graph": graph_key(llama, "sha256:" + "1" * 64),
    } == GOLDEN


def test_key_is_independent_of_the_machine(opened: Open, tmp_path: Path) -> None:
    first = opened()
    plan = resolve(first, Request(), WEIGHTS)
    moved = tmp_path / "another" / "place"
    shutil.copytree(first.folder, moved)
    again = resolve(open_checkpoint(str(moved)), Request(), WEIGHTS)
    assert again.build_key == plan.build_key
    assert str(tmp_path) not in json.dumps(plan.spec)
    assert "checkpoint" not in json.dumps(plan.spec)
    assert plan.spec["toolchain"]["torch"] == "2.13.0"
    assert "+cpu" not in json.dumps(plan.spec)


SAME: Mapping[str, dict[str, Any]] = {
    "a readme": {"files": {"README.md": "# Another"}},
    "how it was trained": {"initializer_range": 0.5, "attention_dropout": 0.1},
    "who saved it": {"transformers_version": "4.1", "_name_or_path": "/home/me/llama"},
}


@pytest.mark.parametrize("name", SAME)
def test_graph_key_ignores_options_that_do_not_change_the_graph(opened: Open, name: str) -> None:
    structure = "sha256:" + "1" * 64
    before = graph_key(resolve(opened(), Request(), WEIGHTS), structure)
    assert graph_key(resolve(opened(**SAME[name]), Request(), WEIGHTS), structure) == before


def test_a_readme_does_not_change_the_build_key(opened: Open) -> None:
    before = resolve(opened(), Request(), WEIGHTS).build_key
    after = resolve(opened(files={"README.md": "# Another"}), Request(), WEIGHTS)
    assert after.build_key == before


def test_saying_a_default_does_not_change_the_key(opened: Open) -> None:
    plain = resolve(opened(), Request(), WEIGHTS)
    output = Request(
        target="ort", weights="fp32", profile="latency", ctx_len=4096, prefill_seq_len=128
    )
    assert resolve(opened(), output, WEIGHTS).build_key == plain.build_key
    plain = resolve(opened(), Request(weights="int4"), WEIGHTS)
    output = Request(weights="int4", bits=MIXED_BITS)
    assert resolve(opened(), output, WEIGHTS).build_key == plain.build_key


def test_every_request_has_a_key_of_its_own(opened: Open) -> None:
    requests = [
        {},
        {"weights": "int8"},
        {"weights": "int4"},
        {"weights": "int4", "block_size": 64},
        {"weights": "int8", "block_size": 32},
        {"ctx_len": 4095},
        {"prefill_seq_len": 127},
        {"batch_size": 2},
        {"full_batch_size": 2},
        {"full_batch_size": 3},
        {"profile": "throughput"},
        {"profile": "long"},
    ]
    keys = [resolve(opened(), Request(**request), WEIGHTS).build_key for request in requests]
    assert len(set(keys)) == len(keys)
    requests = [
        {},
        {"pooling": "cls"},
        {"pooling": "max"},
        {"normalize": True},
        {"seq_lens": (32,)},
        {"seq_lens": (32, 64)},
        {"batch_size": 2},
    ]
    keys += [resolve(opened(BERT), Request(**request), WEIGHTS).build_key for request in requests]
    assert len(set(keys)) == len(keys)


def test_every_semantic_field_changes_the_key(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(checkpoint: Checkpoint, weights: str = WEIGHTS) -> str:
        return resolve(checkpoint, Request(), weights).build_key

    base = opened()
    keys = {
        "plain": key(base),
        "weights": key(base, "sha256:" + "8" * 64),
        "model": key(replace(base, model_id="org/name", revision="a" * 40)),
        "revision": key(replace(base, model_id="org/name", revision="b" * 40)),
        "config": key(opened(num_hidden_layers=5)),
        "epsilon": key(opened(rms_norm_eps=1e-6)),
        "tokenizer": key(opened(files={"tokenizer.json": '{"version": "2.0"}'})),
        "generation": key(opened(files={"generation_config.json": '{"eos_token_id": 3}'})),
    }
    base = opened()
    llama = find_recipe("llama")
    for name, changed in {
        "recipe": replace(llama, rev=2),
        "transform": replace(llama, transforms=(replace(llama.transforms[0], version=2),)),
        "parameters": replace(
            llama, transforms=(replace(llama.transforms[0], parameters={"offset": 1.0}),)
        ),
        "no transform": replace(llama, transforms=()),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(registry, "find_recipe", lambda *_, changed=changed: changed)
            keys[name] = key(base)
    with_text = opened(files={"tokenizer.json": '{"version": "2.0"}'})
    for tool in TOOLS:
        with monkeypatch.context() as patch:
            patch.setattr(versions, "version", {**TOOLS, tool: "9.9"}.__getitem__)
            keys[tool] = key(with_text if tool == "tokenizers" else base)
    with monkeypatch.context() as patch:
        patch.setattr(spec, "EXPORTER_REVISION", spec.EXPORTER_REVISION + 1)
        keys["exporter"] = key(base)
    with monkeypatch.context() as patch:
        patch.setattr(text, "_REVISION", text._REVISION + 1)
        keys["how tokenizers are made"] = key(with_text)
    with_media = opened(files={"preprocessor_config.json": "{}"})
    keys["processor"] = key(with_media)
    with monkeypatch.context() as patch:
        patch.setattr(processors, "_REVISION", processors._REVISION + 1)
        keys["how settings of processors are made"] = key(with_media)
    assert key(base) == keys["plain"]
    assert len(set(keys.values())) == len(keys)


def test_graph_key_is_the_same_for_a_fine_tune(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure = "sha256:" + "1" * 64

    def key(checkpoint: Checkpoint, weights: str = WEIGHTS, **request: Any) -> str:
        return graph_key(resolve(checkpoint, Request(**request), weights), structure)

    plain = key(opened())
    assert plain.startswith("qg1-")
    assert key(opened(), "sha256:" + "8" * 64) == plain
    assert key(opened(files={"tokenizer.json": "{}"}, eos_token_id=7)) == plain
    assert key(opened(), weights="sha256:" + "8" * 64, ctx_len=64, prefill_seq_len=8) == plain
    assert key(opened(), batch_size=4) == plain
    different = {
        key(opened(), full_batch_size=4),
        key(opened(num_hidden_layers=5)),
        key(opened(rms_norm_eps=1e-6)),
        graph_key(resolve(opened(), Request(), WEIGHTS), "sha256:" + "2" * 64),
        plain,
    }
    monkeypatch.setattr(versions, "version", {**TOOLS, "onnxruntime": "9.9"}.__getitem__)
    assert key(opened()) == plain  # what runs a graph does not make it
    monkeypatch.setattr(versions, "version", {**TOOLS, "torch": "9.9"}.__getitem__)
    different.add(key(opened()))
    assert len(different) == 6


def test_a_missing_tool_is_absent_and_no_error(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return TOOLS[name]

    monkeypatch.setattr(versions, "version", version)
    assert resolve(opened(), Request(), WEIGHTS).spec["toolchain"]["torch"] == "absent"


def test_a_plan_cannot_be_changed(opened: Open) -> None:
    plan = resolve(opened(), Request(), WEIGHTS)
    with pytest.raises(AttributeError):
        plan.programs = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "8-bit floats"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "nf4",
        ),
        ({"quant_method": "awq", "bits": 4}, ""),
    ],
)
def test_rounding_of_small_floats_is_reported(
    opened: Open, config: Mapping[str, Any], message: str
) -> None:
    checkpoint = opened({**LLAMA, "quantization_config": config})
    warnings = resolve(checkpoint, Request(), WEIGHTS).warnings
    assert [f"in {message}, of which" in text for text in warnings] == [True] * bool(message)
    assert resolve(checkpoint, Request(weights="fp32"), WEIGHTS).warnings == ()


def test_rounding_of_rounded_weights_is_reported(opened: Open) -> None:
    checkpoint = opened({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}})
    for weights in ("int4", "int8", "stored", None):
        found = resolve(checkpoint, Request(weights=weights), WEIGHTS).warnings
        again = [text for text in found if "(awq), and --weights int4 rounds them again" in text]
        assert len(again) == (weights == "int4")
    assert not resolve(opened(), Request(weights="int4"), WEIGHTS).warnings


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ""),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ""),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ""),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "both errors add up"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "both errors add up"),
        ({"quantization": {"bits": 6, "group_size": 64}}, "by more than its 6.0 bits do"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "int", "group_size": 128},
                        "input_activations": None,
                    }
                },
            },
            "both errors add up",
        ),
    ],
)
def test_the_error_of_few_bits_alone_is_reported(
    opened: Open, config: Mapping[str, Any], words: str
) -> None:
    own = config if "quantization" in config else {"quantization_config": config}
    checkpoint = opened({**LLAMA, **own})
    found = resolve(checkpoint, Request(weights="int4"), WEIGHTS).warnings
    assert [words in text for text in found] == [True] * bool(words)


def test_disabled_option_is_explained(opened: Open) -> None:
    plan = resolve(opened(LLAMA), Request(target="qaic", mxfp6_matmul=False), WEIGHTS)
    assert plan.explained()["target.mxfp6_matmul"] == {"value": False, "by": "user"}
