# SPDX-License-Identifier: Apache-2.0
"""The table of a build's choices: from each line follow a flag, a place in the spec, a rule for sharing, and a name."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint
from checkout import TESTS

from qeff_zoo import contract
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import parser
from qeff_zoo.cli.inputs import choices_of
from qeff_zoo.cli.options import json_text
from qeff_zoo.errors import PlanError
from qeff_zoo.hub.entries import axes_of, variant_name
from qeff_zoo.hub.resolve.axes import KINDS, Rule, rule_of
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.registry import find_recipe

#: What is built to have a choice of each kind, or one by its name, and what has no use for it.
CHECKPOINTS: Mapping[str | None, tuple[str, str | None]] = {
    None: ("llama", None),
    "decoder": ("llama", "bert"),
    "encoder": ("bert", "llama"),
    "embeddings": ("bert", "llama"),
    "image_size": ("qwen2_5_vl", "llama"),
    "max_num_images": ("mllama", "llama"),
    "single_program": ("llava", "llama"),
}
QNN_CONFIG = TESTS / "stub_qnn" / "qnn_config.json"
#: By the type of what is chosen: as written, and as read. By name where not every value will do.
TYPICAL: Mapping[Any, tuple[str, Any]] = {
    int: ("96", 96),
    float: ("5.5", 5.5),
    tuple[int, ...]: ("256,512", (256, 512)),
    tuple[str, ...]: ("RMSNorm", ("RMSNorm",)),
    bool: ("", True),
    "target": ("ort", "ort"),
    "task": ("text-generation", "text-generation"),
    "weights": ("int8", "int8"),
    "block_size": ("64", 64),
    "format": ("lm_head=int8", ("lm_head=int8",)),
    "kv_heads": ("8", 8),
    "profile": ("throughput", "throughput"),
    "pooling": ("cls", "cls"),
    "rope_factors": ("short", "short"),
    "aic_hw_version": ("ai200", "ai200"),
    "num_devices": ("2", 2),
    "soc_model": ("57", 57),
    "num_cores": ("8", 8),
    "image_size": ("448x672", ("448x672",)),
    "mdp_num_partitions": ("2", 2),
    "blocking_mode": ("kv", "kv"),
    "num_kv_blocks": ("4", 4),
    "num_q_blocks": ("4", 4),
    "head_block_size": ("2", 2),
    "qnn_config": (str(QNN_CONFIG), json_text(str(QNN_CONFIG))),
}
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "block_size": {"weights": "int4"},
    "image_size": {"target": "qaic"},
    "mdp_num_partitions": {"num_devices": 4},
    "blocking_mode": {"num_kv_blocks": 4},
    "num_kv_blocks": {"blocking_mode": "kv"},
    "num_q_blocks": {"blocking_mode": "q", "prefill_only": True},
    "head_block_size": {"blocking_mode": "h"},
    "aic_depth_first_mem": {"aic_enable_depth_first": True},
    "max_lora_rank": {"max_loras": 2},
    "lora_targets": {"max_loras": 2},
    "max_top_k_ids": {"include_sampler": True},
    "return_pdfs": {"include_sampler": True},
    "include_guided_decoding": {"include_sampler": True},
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
#: All that some choice is about.
CONFIG = {"max_position_embeddings": 1024, "rope_scaling": LONGROPE, "num_attention_heads": 8}
#: What only some choices are about.
LATENT, SHARED = {"kv_lora_rank": 4}, {"num_key_value_heads": 4}


def planned(folder: Path, model_type: str, **request: Any) -> Plan:
    recipe = find_recipe(model_type)
    own = SHARED if "kv_heads" in request else LATENT
    config = {
        **(recipe.tiny[0].config if recipe.images else {**CONFIG, **own}),
        "model_type": model_type,
        "architectures": list(recipe.architectures[:1]),
    }
    content = {"config.json": json.dumps(config).encode(), **tiny_checkpoint.weights()}
    tiny_checkpoint.write(folder, content)
    return check(open_checkpoint(str(folder)), Request(**request))


# Of adapters and heads the content is what counts: see test_merging and test_draft_heads.
@pytest.mark.parametrize(
    "name", [name for name in OPTIONS if name not in ("adapter", "draft_heads")]
)
def test_all_follows_from_a_line_of_the_table(name: str, tmp_path: Path) -> None:
    option = OPTIONS[name]
    text, value = TYPICAL.get(name) or TYPICAL[option.kind]
    argv = ["plan", "model", option.flag, *([text] if text else [])]
    requested = choices_of(parser().parse_args(argv))
    assert {key: given for key, given in requested.items() if given is not None} == {name: value}

    has, has_not = CHECKPOINTS.get(name) or CHECKPOINTS[option.of]
    beside = {**BESIDE.get(name, {}), **({"target": option.targets[0]} if option.targets else {})}
    plan = planned(tmp_path / "has", has, **{name: value}, **beside)
    spec = json.loads(json.dumps(plan.spec))  # as in a manifest
    axes = axes_of({"target": spec["target"], "task": plan.recipe.task, "spec": spec})
    if option.path is None:  # stands for others
        assert f"recipe:{value}" in plan.why.values()
        assert name not in axes
        return
    whole = (*value, 1024) if name.startswith("comp_ctx_lengths") else value
    assert plan.explained()[option.path] == {"value": whole, "by": "user"}
    assert axes[name] == (list(whole) if isinstance(whole, tuple) else whole)
    assert rule_of(name) == Rule(option.match, option.distance)
    assert option.match in KINDS
    if option.short:
        listed = whole if isinstance(whole, tuple) else (whole,)
        assert option.short + ".".join(map(str, listed)).lower() in variant_name(axes).split("-")
    if has_not:
        with pytest.raises(PlanError, match=f"{option.flag} does not apply to"):
            planned(tmp_path / "has not", has_not, **{name: value}, **beside)
    if option.targets:
        with pytest.raises(
            PlanError, match=f"{option.flag} is for target {' or '.join(option.targets)}, and "
        ):
            planned(tmp_path / "another", has, **{name: value})


def test_the_options_are_the_fields_of_a_request() -> None:
    assert {item.name for item in fields(Request)} == {*OPTIONS}
    assert Request() == Request(**dict.fromkeys(OPTIONS))


def test_flags_and_paths_are_unique() -> None:
    for fact in ("flag", "path", "short"):
        given = [getattr(option, fact) for option in OPTIONS.values() if getattr(option, fact)]
        assert len(set(given)) == len(given)


def test_every_choice_is_of_some_task() -> None:
    every = [contract.find(name) for name in contract.NAMES]
    for option in OPTIONS.values():
        assert any(task.takes(option) for task in every), option.name
