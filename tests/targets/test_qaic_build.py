# SPDX-License-Identifier: Apache-2.0
"""Target `qaic` without its SDK: what its compiler is told and reads, prepared folders, and packages made of them."""

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from fixtures_builds import Models
from fixtures_prepared import Prepare, Script
from fixtures_qaic_build import ROOT, compiler
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as draw
from stub_qaic import lowered

from qeff_zoo import cli, pipeline, targets
from qeff_zoo.checkpoint.config import KV_HEADS
from qeff_zoo.disk import regular
from qeff_zoo.errors import CompileError, PackageError, PlanError, ZooError
from qeff_zoo.export import companions
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.numerics import FLOAT32
from qeff_zoo.graph.states import State
from qeff_zoo.hub.publish import gate
from qeff_zoo.package import Package
from qeff_zoo.package.prepared import NOTE, PREPARED, PROGRAM, SCRIPT, SUMS
from qeff_zoo.pipeline import manifest_entries
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import Shape
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.targets.qaic import command, configs, conflicts, driver, sdk
from qeff_zoo.targets.qaic.options import SPELLED, QaicOptions, bad_flags
from qeff_zoo.validation.trial import package_runner

USUAL: Mapping[str, Any] = {"aic_hw_version": "ai100", "num_devices": 1, "num_cores": 16}
LAYERS = draw.lists(draw.integers(1, 6), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def _small_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qeff_zoo.targets.qaic.lowering.lower", lowered.lower)
    monkeypatch.delenv(sdk.COMPILER_VARIABLE, raising=False)


@pytest.fixture
def target() -> str:
    return "qaic"


@pytest.fixture
def compiler_environment(tmp_path: Path) -> dict[str, str]:
    return {sdk.COMPILER_VARIABLE: str(compiler(tmp_path / "sdk"))}


def program(*, apart: bool = False, **options: Any) -> ProgramPlan:
    return ProgramPlan(
        role="decoder",
        task="text-generation",
        shape=Shape(prefill_seq_len=16, ctx_len=64, prefill_only=apart),
        variant={},
        specializations=[{"name": "Decode", "symbols": {"ctx_len": "64"}}],
        weights=FLOAT32,
        flags={**USUAL, **options},
    )


# --- the command -------------------------------------------------------------------------------


def test_the_command_is_in_the_order_of_qefficient() -> None:
    given = {
        "num_devices": 4, "mxfp6_matmul": True, "mxint8_kv_cache": True, "num_cores": 14, "mos": 2,
        "aic_enable_depth_first": True, "node_precision_info": ("Add",), "sub_functions": True,
        "compiler_flag": ("time-passes", "io-encrypt=yes"),
    }  # fmt: skip
    (words,) = targets.find("qaic").commands(program(**given), "graph")
    assert words == [
        "qaic-compile", "-aic-hw", "-aic-hw-version=ai100", "-m=model.onnx",
        "-retained-state", "-convert-to-fp16", "-mxfp6-matmul", "-aic-num-cores=14", "-mos=2",
        "-aic-enable-depth-first", "-time-passes", "-io-encrypt=yes",
        "-node-precision-info=node_precision_info.yaml", "-sub-functions",
        "-mdp-load-partition-config=mdp_partitions.json",
        "-network-specialization-config=specializations.json", "-custom-IO-list-file=custom_io.yaml",
        "-aic-binary-dir=qpc",
    ]  # fmt: skip
    pipelined = command.arguments(program(num_devices=4, mdp_num_partitions=2), "graph")
    assert pipelined[2:4] == ["-m=model.onnx", "-mdp-load-partition-config=mdp_partitions.json"]


@pytest.mark.parametrize("chosen", [None, True])
def test_states_that_are_handed_over_are_inputs_and_outputs(chosen: bool | None) -> None:
    words = command.arguments(program(apart=True, split_retained_state_io=chosen), "graph")
    assert words.count("-split-retained-state-io") == 1
    assert "-split-retained-state-io" not in command.arguments(program(), "graph")


def test_several_programs_have_files_of_their_own() -> None:
    (words,) = targets.find("qaic").commands(program(), "draft")
    assert "-m=draft.model.onnx" in words
    assert words[-1] == "-aic-binary-dir=qpc/draft"


def test_an_encoder_retains_nothing() -> None:
    encoder = ProgramPlan(
        role="encoder",
        task="feature-extraction",
        shape=Shape(seq_lens=(8,)),
        variant={},
        specializations=[],
        weights=FLOAT32,
        flags=USUAL,
    )
    words = command.arguments(encoder, "graph")
    assert not [word for word in words if "retained" in word or "custom-IO" in word]


@pytest.mark.parametrize("spelling", SPELLED)
def test_every_option_has_the_spelling_of_the_compiler(spelling: str) -> None:
    option = OPTIONS[SPELLED[spelling]]
    values = {bool: True, int: 3, str: "ai200", tuple[str, ...]: ("Add",)}
    words = command.arguments(program(**{option.name: values[option.kind]}), "graph")
    (word,) = [word for word in words if word.split("=")[0] == f"-{spelling}"]
    content = {bool: "", int: "=3", str: "=ai200", tuple[str, ...]: "=node_precision_info.yaml"}
    assert word == f"-{spelling}{content[option.kind]}"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("time-passes",), None),
        (("io-encrypt=a b=c", "qpc-crc"), None),
        (("mos=1",), "Use --mos."),
        (("aic-num-cores=4",), "Use --num-cores."),
        (("m=x",), "follows from the other choices"),
        (("retained-state",), "follows from the other choices"),
        (("-mos=1",), "expected NAME or NAME=VALUE"),
        (("x=",), "expected NAME or NAME=VALUE"),
        (("",), "expected NAME or NAME=VALUE"),
        (("x=a\nb",), "expected NAME or NAME=VALUE"),
        (("x=/tmp/y",), "a path of this machine"),
        (("x=~/y",), "a path of this machine"),
        (("x=1", "x=2"), "more than once"),
    ],
)
def test_flags_that_no_choice_has(flags: tuple[str, ...], problem: str | None) -> None:
    found = bad_flags(flags)
    assert (problem in found[0]) if problem else not found


@given(draw.lists(draw.text(max_size=30), max_size=4))
def test_a_compiler_flag_is_one_word_without_a_flag_of_its_own(flags: list[str]) -> None:
    if bad_flags(tuple(flags)):
        return
    words = command.arguments(program(compiler_flag=tuple(flags)), "graph")
    assert [word for word in words if word[1:] in flags] == [f"-{flag}" for flag in flags]
    names = [word.partition("=")[0] for word in words]
    assert len(set(names)) == len(names)
    assert all(word.isprintable() for word in words)


def test_the_compiler_is_located_by_the_variable_or_the_sdk(tmp_path: Path) -> None:
    assert sdk.compiler({}, tmp_path) is None
    older = compiler(tmp_path / "exec", "qaic-exec")
    assert sdk.compiler({}, tmp_path) == older
    newer = compiler(tmp_path / "exec")
    assert sdk.compiler({}, tmp_path) == newer
    assert sdk.compiler({sdk.COMPILER_VARIABLE: str(older)}, tmp_path) == older
    assert sdk.compiler({sdk.COMPILER_VARIABLE: "/nowhere/qaic-compile"}, tmp_path) is None


def test_searched_places_of_the_compiler_are_reported(tmp_path: Path) -> None:
    assert sdk.lacking({}, tmp_path) == f"there is no qaic-compile in {str(tmp_path / 'exec')!r}"
    named = {sdk.COMPILER_VARIABLE: "/no/where"}
    assert sdk.lacking(named, tmp_path) == "QAIC_COMPILE is '/no/where', which is no program"


def test_versions_of_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sdk.installed("apps") == "absent"
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "apps.xml").write_text(
        "<v><base_version>1.20.0</base_version><build_id>90</build_id></v>"
    )
    assert sdk.version("apps", tmp_path) == "1.20.0.90"


# --- what the compiler reads -------------------------------------------------------------------


@given(counts=LAYERS, stages=draw.integers(1, 8), each=draw.integers(1, 4))
def test_a_pipeline_has_every_node_once_in_the_order_of_layers(
    counts: list[int], stages: int, each: int
) -> None:
    nodes: list[tuple[int | None, str]] = [(None, "first")]
    for layer, count in enumerate(counts):
        nodes += [(layer, f"model.layers.{layer}/{place}") for place in range(count)]
        nodes += [(None, f"behind {layer}")]
    if len(counts) < stages:
        with pytest.raises(CompileError, match="at most one stage for each layer"):
            configs.pipelined(nodes, stages, stages * each, 16)
        return
    config = json.loads(configs.pipelined(nodes, stages, stages * each, 16))
    parts = config["partitions"]
    assert [name for part in parts for name in part["nodeList"]] == [name for _, name in nodes]
    devices = [[device["deviceId"] for device in part["devices"]] for part in parts]
    assert [len(ids) for ids in devices] == [each] * stages
    assert config["connections"] == [{"devices": [*range(stages * each)], "type": "p2p"}]
    layer_of = {name: layer for layer, name in nodes}
    sizes = [len({layer_of[name] for name in part["nodeList"]} - {None}) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    longer = [stage for stage, size in enumerate(sizes) if size > min(sizes)]
    assert longer == [*range(longer[0], longer[-1] + 1)] if longer else True  # in the middle
    if longer:
        assert abs(longer[0] - (stages - 1 - longer[-1])) <= 1


def test_slices_are_on_every_device() -> None:
    assert json.loads(configs.sliced(2, 14)) == {
        "connections": [{"devices": [0, 1], "type": "p2p"}],
        "partitions": [
            {
                "name": "Partition0",
                "devices": [{"deviceId": 0, "numCores": 14}, {"deviceId": 1, "numCores": 14}],
            }
        ],
    }


def test_states_are_named_as_they_come_in_and_go_out() -> None:
    state = State(name="past_key.0", kind="growing", layer=0, axes=("batch_size", 2, "ctx_len", 64))
    conv = State(name="conv_state.1", kind="recurrent", layer=1, axes=("batch_size", 3, 5))
    text = configs.custom_io([state, conv], configs.state_types({"mxint8_kv_cache": True}))
    assert text == (
        " - IOName: past_key.0\n   Precision: mxint8\n\n"
        " - IOName: past_key.0_RetainedState\n   Precision: mxint8\n\n"
        " - IOName: conv_state.1\n   Precision: float16\n\n"
        " - IOName: conv_state.1_RetainedState\n   Precision: float16\n\n"
    )
    assert "mxint8" not in configs.custom_io([state], configs.state_types({}))


@given(draw.integers(1, 300))
def test_blocks_of_mxint8_are_of_32(size: int) -> None:
    state = State(name="past_key.0", kind="window", layer=0, axes=("batch_size", 2, 7, size))
    types = configs.state_types({"mxint8_kv_cache": True})
    if size % 32 == 0:
        assert "mxint8" in configs.custom_io([state], types)
        return
    with pytest.raises(CompileError, match=f"rows of {size}, .* a multiple of 32"):
        configs.custom_io([state], types)


def chain(domain: str, name: str, count: int) -> ir.Function:
    """Make a function of so many nodes."""
    value = first = ir.Value(name="x")
    nodes = []
    for _ in range(count):
        nodes.append(ir.node("Relu", [value], num_outputs=1))
        value = nodes[-1].outputs[0]
    graph = ir.Graph([first], [value], nodes=nodes, opset_imports={"": 18}, name=name)
    for one in graph:
        one.name = None
    return ir.Function(domain, name, graph=graph, attributes=[])


def test_names_are_those_of_the_compiler() -> None:
    functions = [
        chain("zoo", "Small", 99), chain("zoo", "Large", 100),
        chain("com.qti.aisw.onnx", "CustomRMSNorm", 3),
    ]  # fmt: skip
    x = ir.Value(name="x")
    nodes = [
        ir.Node(function.domain, function.name, [x], num_outputs=1, name=f"model.layers.{place}")
        for place, function in enumerate(functions)
    ]
    nodes.append(ir.Node("", "Relu", [x], num_outputs=1))
    graph = ir.Graph([x], [node.outputs[0] for node in nodes], nodes=nodes, name="g")
    nodes[-1].name = None
    model = ir.Model(graph, ir_version=8, functions=functions)
    configs.name_nodes(model)
    found = configs.nodes_of(model)
    assert [name for _, name in found] == [
        "model.layers.0", *(f"model.layers.0/Relu_{place}" for place in range(99)),
        "model.layers.1", "model.layers.2", "Relu_3",
    ]  # fmt: skip
    assert [layer for layer, _ in found] == [0] * 100 + [1, 2, None]
    assert len(configs.matching_outputs(model, ("Relu", "*layers.1"))) == 2
    other = ir.Model(ir.Graph([], [], nodes=[ir.Node("", "Softmax", [x])], name="h"), ir_version=8)
    configs.check_patterns([model, other], ("Relu", "Softmax"))
    assert configs.matching_outputs(model, ("Softmax",)) == []
    assert configs.node_precision([]) == "FP32NodeInstanceNames: []\n"
    with pytest.raises(CompileError, match=r"'Softmax' fits no node .*CustomRMSNorm"):
        configs.check_patterns([model], ("Softmax",))


# --- conflicts ---------------------------------------------------------------------------------

HEADS = {"num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("config", "options", "problem"),
    [
        (HEADS, {"num_devices": 12}, None),
        (HEADS, {"num_devices": 8}, "Choose one of 1, 2, 3, 4, 6, 12."),
        (HEADS, {"num_devices": 24}, "cannot share the model's 12 heads evenly"),
        (HEADS, {"num_devices": 16, "mdp_num_partitions": 4}, None),
        (HEADS, {"num_devices": 10, "mdp_num_partitions": 2}, "Choose one of 2, 4, 6, 8, 12, 24."),
        (HEADS, {"num_devices": 6, "mdp_num_partitions": 4}, "Choose a multiple of 4 devices."),
        (HEADS, {"num_devices": 6, "mdp_num_partitions": 6}, "Choose at most 4."),
        ({"text_config": HEADS}, {"num_devices": 8}, "12 heads"),
        ({}, {"num_devices": 7}, None),
        (HEADS, {"mxint8_kv_cache": True}, None),
        ({**HEADS, "head_dim": 80}, {"mxint8_kv_cache": True}, "multiple of 32, .* have 80"),
        ({**HEADS, "head_dim": 80}, {}, None),
        ({**HEADS, "head_dim": 80, "kv_lora_rank": 512}, {"mxint8_kv_cache": True}, None),
        (HEADS, {"aic_depth_first_mem": 8}, "is for --aic-enable-depth-first"),
        (HEADS, {"aic_depth_first_mem": 8, "aic_enable_depth_first": True}, None),
        (HEADS, {"node_precision_info": ("RMSNorm", "*layers.0*")}, None),
        (HEADS, {"node_precision_info": ("/tmp/npi.yaml",)}, "operators or names of nodes"),
        (HEADS, {"compiler_flag": ("mos=2",)}, "Use --mos."),
    ],
)
def test_what_does_not_go_together(
    config: dict[str, Any], options: dict[str, Any], problem: str | None
) -> None:
    import re

    found = conflicts.problems(config, {**USUAL, **options})
    assert len(found) == bool(problem)
    assert not problem or re.search(problem, found[0])


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 16, "num_key_value_heads": 2}, 2),
        ({"text_config": {"num_attention_heads": 16, "num_key_value_heads": 2}}, 2),
        ({"thinker_config": {"text_config": {"num_attention_heads": 16, "num_key_value_heads": 2},
          "vision_config": {}}}, 2),
        ({"num_attention_heads": 16, "num_kv_heads": 2, "multi_query": True,
          "new_decoder_architecture": True}, 2),
        ({"num_attention_heads": 16, "num_kv_heads": 16, "multi_query": True}, 1),
        ({"n_head": 16, "multi_query": True}, 1),
        ({"n_heads": 16, "attn_config": {"kv_n_heads": 2}}, 2),
        ({"num_attention_heads": 16, "num_key_value_heads": 1, "kv_lora_rank": 64}, None),
        ({"num_attention_heads": 16}, None),
    ],
)  # fmt: skip
def test_devices_that_share_key_value_heads_unevenly_are_warned_of(
    config: dict[str, Any], heads: int | None
) -> None:
    assert not conflicts.warnings(config, {**USUAL, "num_devices": heads or 4})
    found = conflicts.warnings(config, {**USUAL, "num_devices": 8})
    assert [one.partition("the model's ")[2][:2] for one in found] == [f"{heads} "] * bool(heads)
    assert ["--kv-heads 8 " in one for one in found] == [KV_HEADS[0] in config] * bool(heads)


@given(heads=draw.integers(1, 64), devices=draw.integers(1, 70), stages=draw.integers(1, 4))
def test_the_counts_that_are_offered_will_do(heads: int, devices: int, stages: int) -> None:
    config = {"num_attention_heads": heads}
    options = {**USUAL, "num_devices": devices, "mdp_num_partitions": stages}
    found = conflicts.problems(config, options)
    assert bool(found) == bool(devices % stages or heads % (devices // stages))
    if found and "Choose one of" in found[0]:
        for count in found[0].rpartition("one of ")[2].rstrip(".").split(", "):
            assert not conflicts.problems(config, {**options, "num_devices": int(count)})


def test_a_plan_refuses_all_conflicts_at_once_and_warns_of_what_is_allowed(
    models: Models, home: Path
) -> None:
    wrong = Request(target="qaic", num_devices=7, num_cores=17, mos=0, aic_depth_first_mem=1)
    with pytest.raises(PlanError) as caught:
        pipeline.make_plan(str(models.llama), wrong)
    assert len(caught.value.problems) == 4
    with pytest.warns(UserWarning, match="--mdts-mos leaves retained states without their pairs"):
        pipeline.make_plan(str(models.llama), Request(target="qaic", mdts_mos=1))


# --- prepared folders --------------------------------------------------------------------------


def test_what_is_prepared(prepare: Prepare, tmp_path: Path) -> None:
    folder = prepare(num_devices=2, mxfp6_matmul=True)
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "model.onnx", "weights.safetensors", "specializations.json", "custom_io.yaml",
        "mdp_partitions.json", "tokenizer.json", "config.json", SCRIPT, SUMS, PREPARED,
    }  # fmt: skip
    assert os.access(folder / SCRIPT, os.X_OK)
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", SUMS], cwd=folder, check=True)
    onnx.checker.check_model(str(folder / "model.onnx"))
    for name in names - {"weights.safetensors"}:
        assert str(tmp_path).encode() not in (folder / name).read_bytes(), name
    content = json.loads((folder / PREPARED).read_bytes())
    assert content["note"].startswith("This is no package")
    listed = {file["path"] for file in content["files"]}
    assert listed == names - {PREPARED}
    with pytest.raises(PackageError, match="is not a package"):
        Package.open(folder)


def test_a_prepared_folder_is_the_same_on_every_day(prepare: Prepare) -> None:
    one, other = prepare("one"), prepare("other")
    assert (one / SUMS).read_bytes() == (other / SUMS).read_bytes()


def test_nothing_half_made_looks_prepared(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(companions, "copy", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert not (tmp_path / "prepared").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".prepared")]


def test_a_choice_that_the_graph_cannot_keep_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="'Softmax' fits no node"):
        prepare(node_precision_info=("Softmax",))
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"num_devices": 2, "mxfp6_matmul": True, "mos": 2},
        {"num_devices": 2, "mdp_num_partitions": 2, "node_precision_info": ("MatMul",)},
        {"full_batch_size": None, "aic_enable_depth_first": True, "compiler_flag": ("qpc-crc",)},
    ],
)
def test_from_a_checkpoint_to_a_package(
    prepare: Prepare, script: Script, home: Path, choices: dict[str, Any]
) -> None:
    folder = prepare(**choices)
    done = script(folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "qpc" / PROGRAM).read_bytes().startswith(b"NO QPC")
    assert "stub of qaic-compile: -aic-hw" in (folder / driver.LOG).read_text()
    package = adopt(folder, folder / "qpc", Store())
    assert package.path.parent == home / "packages"
    assert package.validated == "none"
    assert not package.verify()
    kept = {file["path"] for file in package.manifest["files"]}
    assert kept >= {"qpc/programqpc.bin", "qpc/constants.bin", "tokenizer.json", "custom_io.yaml"}
    assert not kept & {"model.onnx", "weights.safetensors", SCRIPT, SUMS, PREPARED, f"qpc/{NOTE}"}
    storage = "mxfp6" if "mxfp6_matmul" in choices else "fp16"
    assert package.manifest["weights"]["storage"] == storage
    assert {state["dtype"] for state in package.manifest["programs"][0]["states"]} == {"float16"}
    (objection,) = [text for text in gate.objections(package) if "validated" in text]
    assert objection.startswith("It is not validated")
    assert (
        package.build_key == json.loads((folder / PREPARED).read_bytes())["manifest"]["build_key"]
    )


def test_the_script_refuses_what_it_finds_changed(prepare: Prepare, script: Script) -> None:
    folder = prepare()
    (folder / "qpc").mkdir()
    done = script(folder)
    assert (done.returncode, "'qpc' is there already" in done.stderr) == (1, True)
    (folder / "qpc").rmdir()
    done = script(folder, **{sdk.COMPILER_VARIABLE: "/nowhere/qaic-compile"})
    assert (done.returncode, "No compiler at '/nowhere/qaic" in done.stderr) == (1, True)
    (folder / "custom_io.yaml").write_text("")
    done = script(folder)
    assert (done.returncode, "Files differ from what was prepared" in done.stderr) == (1, True)
    assert not (folder / "qpc").exists()


def test_a_failed_compile_leaves_no_qpc(prepare: Prepare, script: Script) -> None:
    folder = prepare()
    assert script(folder, STUB_QAIC="full").returncode == 1
    assert not (folder / "qpc").exists()
    assert "No space left on device" in (folder / driver.LOG).read_text()
    assert script(folder).returncode == 0  # once that is mended


def test_the_older_compiler_gets_its_own_options(
    prepare: Prepare, script: Script, tmp_path: Path
) -> None:
    folder = prepare()
    older = compiler(tmp_path / "old", "qaic-exec")
    done = script(folder, **{sdk.COMPILER_VARIABLE: str(older)})
    assert done.returncode == 0, done.stderr
    (line,) = (folder / driver.LOG).read_text().splitlines()
    assert " -aic-hw-version=2.0 " in line
    assert line.endswith("-compile-only -aic-binary-dir=qpc.partial")
    assert " -network-specialization-config=specializations.flat.json " in line
    package = adopt(folder, folder / "qpc", Store())
    assert package.programs[0].compiler["name"] == "qaic-compile"  # no version is known of it


@pytest.mark.parametrize(
    ("version", "is_flat"),
    [("1.20.0</base_version><build_id>90</build_id>", True), ("1.9.0", True), ("1.21.6", True),
     ("1.22.0", False), ("1.22.8.0", False), ("1.100.0", False), (None, False)],
)  # fmt: skip
def test_an_older_sdk_reads_sizes_without_names(
    version: str | None, is_flat: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "exec").mkdir(parents=True)
    if version is not None:
        end = "" if "</base_version>" in version else "</base_version>"
        (folder / "versions").mkdir()
        text = f"<v>\n<base_version>{version.replace('><b', f'>{chr(10)}<b')}{end}\n</v>"
        (folder / "versions" / "apps.xml").write_text(text)
    showing = folder / "exec" / "qaic-compile"
    words = 'for word; do case $word in -network*) cat "${word#*=}";; esac; done'
    showing.write_text(f"#!/bin/bash\n{words}\n")
    showing.chmod(0o755)
    entries = [
        {"name": "Prefill", "symbols": {"seq_len": "16", "ctx_len": "64"}},
        {"name": "Decode", "symbols": {"seq_len": "1", "ctx_len": "64"}},
    ]
    (folder / "encoder.specializations.json").write_text(configs.specializations(entries))
    found_by = command.COMPILER.replace(str(sdk.SDK), str(folder))
    argument = "-network-specialization-config=encoder.specializations.json"
    words = f'fail() {{ exit 1; }}; logged() {{ "$@"; }}\n{found_by}\ncompile_into qpc {argument}'
    done = subprocess.run(
        ["bash", "-euc", words], cwd=folder, capture_output=True, text=True, check=True
    )
    expected = [entry["symbols"] for entry in entries] if is_flat else entries
    assert json.loads(done.stdout) == {"specializations": expected}


# --- adopting ----------------------------------------------------------------------------------


@pytest.fixture
def compiled(prepare: Prepare, script: Script) -> Path:
    """A prepared folder with what was compiled from it."""
    folder = prepare()
    assert script(folder).returncode == 0
    return folder


def forget(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def change(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def flip(name: str) -> Callable[[Path], None]:
    """Change the last byte of a file."""

    def write(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return write


def link(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).symlink_to("/etc/hostname")

    return make


def pipe(name: str) -> Callable[[Path], None]:
    return lambda folder: os.mkfifo(folder / name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip("weights.safetensors"), "'weights.safetensors' has digest"),
        (flip("model.onnx"), "'model.onnx' has digest"),
        (forget("tokenizer.json"), "'tokenizer.json' is missing"),
        (forget(PREPARED), "is no prepared folder"),
        (change(PREPARED, b"{"), "cannot be read"),
        (change(PREPARED, b"{}"), "its schema is None"),
        (change(PREPARED, b'{"schema": "qeff-prepared/1"}'), "is a required property"),
        (forget(f"qpc/{PROGRAM}"), f"it has no {PROGRAM}, or an empty one"),
        (change(f"qpc/{PROGRAM}", b""), f"it has no {PROGRAM}, or an empty one"),
        (forget(f"qpc/{NOTE}"), "it is unknown what it was compiled from.*--unchecked"),
        (change(f"qpc/{NOTE}", b"[]"), f"{NOTE} cannot be read"),
        (change(f"qpc/{NOTE}", b'{"sums": ""}'), "compiled from other files"),
        (link("qpc/more.bin"), "'qpc/more.bin' is a symbolic link"),
        (pipe("qpc/more.bin"), "'qpc/more.bin' is no regular file"),
    ],
)
@pytest.mark.sampled(3)
def test_what_is_not_adopted(
    compiled: Path, home: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(compiled)
    with pytest.raises(PackageError, match=message):
        adopt(compiled, compiled / "qpc", Store())
    assert {entry.kind for entry in Store().entries()} <= {"graph", "companions"}


@pytest.mark.parametrize(("owner", "reading"), [(regular, "only_regular"), (Path, "stat")])
def test_a_program_that_cannot_be_read_is_not_adopted(
    compiled: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Any,
    reading: str,
) -> None:
    before = getattr(owner, reading)

    def refuse(path: str | Path, *given: Any, **more: Any) -> Any:
        if Path(path).name == PROGRAM:  # whoever runs the tests may read everything
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return before(path, *given, **more)

    monkeypatch.setattr(owner, reading, refuse)
    assert cli.main(["adopt", str(compiled), str(compiled / "qpc")]) == 1

    printed_text = capsys.readouterr().err
    assert f"Cannot adopt {str(compiled / 'qpc')!r}: " in printed_text
    assert f"{PROGRAM}' cannot be read: Permission denied. Expected the folder that" in printed_text


def test_a_qpc_of_another_graph_is_refused(
    compiled: Path, prepare: Prepare, script: Script
) -> None:
    other = prepare("other", mxfp6_matmul=True)
    assert script(other).returncode == 0
    for unchecked in (False, True):
        with pytest.raises(PackageError, match="compiled from other files"):
            adopt(compiled, other / "qpc", Store(), unchecked=unchecked)
    with pytest.raises(
        PackageError, match=r"is not a package yet, .* compile.sh .*, then `qeff-zoo adopt`"
    ):
        Package.open(compiled)


def test_a_qpc_without_a_record_is_accepted_unchecked(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(compiled / "qpc", tmp_path / "elsewhere")
    (moved / NOTE).unlink()
    argv = ["adopt", str(compiled), str(moved), "--unchecked", "-o", str(tmp_path / "out")]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert Package.open(tmp_path / "out").validated == "none"


def test_the_version_of_the_compiler_is_what_compiled_it(compiled: Path) -> None:
    note = json.loads((compiled / "qpc" / NOTE).read_bytes())
    note["version"] = "1.20.0.90"
    (compiled / "qpc" / NOTE).write_text(json.dumps(note))
    package = adopt(compiled, compiled / "qpc", Store())
    assert package.programs[0].compiler == {"name": "qaic-compile", "version": "1.20.0.90"}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value in JSON."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from places(item, (*path, key))


def test_hostile_notes_of_what_was_prepared(compiled: Path) -> None:
    content = json.loads((compiled / PREPARED).read_bytes())
    every = [path for path in places(content) if path]
    values: tuple[Any, ...] = (None, -1, "", "../x", "/etc/passwd", [], {}, [[]], "qpc", "a" * 999)

    @settings(max_examples=example_count(150))
    @given(draw.sampled_from(every), draw.sampled_from(values))
    def try_one(path: tuple[Any, ...], value: Any) -> None:
        changed = json.loads(json.dumps(content))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        (compiled / PREPARED).write_text(json.dumps(changed))
        try:
            package = adopt(compiled, compiled / "qpc", Store())
        except ZooError:
            return
        assert package.validated == "none"
        assert not package.verify()

    try_one()


# --- building where the SDK is -----------------------------------------------------------------


@pytest.fixture
def build(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Package]:
    """Give a function that builds with the stub; there is no card to call the package on."""
    monkeypatch.setenv(sdk.COMPILER_VARIABLE, str(compiler(tmp_path / "sdk")))
    monkeypatch.setattr(package_runner, "call_once", lambda package: None)
    monkeypatch.setattr(manifest_entries, "has_uncommitted_changes", lambda: False)
    models.trace(models.llama, home)

    def run(**choices: Any) -> Package:
        request = Request(target="qaic", ctx_len=64, prefill_seq_len=16, **choices)
        return pipeline.build(str(models.llama), request, validate=False).package

    return run


def test_a_build_compiles(build: Callable[..., Package]) -> None:
    package = build(num_devices=2)
    kept = {file["path"]: file["role"] for file in package.manifest["files"]}
    assert kept["qpc/programqpc.bin"] == kept["qpc/constants.bin"] == "program"
    assert kept["mdp_partitions.json"] == kept["custom_io.yaml"] == "compile-config"
    assert kept[driver.LOG] == "log"
    assert not kept.keys() & {"model.onnx", SCRIPT, f"qpc/{NOTE}"}


def test_a_program_that_is_there_is_taken_whole(
    build: Callable[..., Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build()
    monkeypatch.setattr(driver, "run", pytest.fail)
    monkeypatch.setattr(Store, "lookup", skipping_once(Store.lookup, first.build_key))
    again = build()
    assert not again.verify()
    assert (again.path / "qpc" / "constants.bin").is_file()


def skipping_once(lookup: Any, key: str) -> Any:
    """Make a store forget once that it has a package."""
    requested: list[str] = []

    def run(self: Store, build_key: str) -> Package | None:
        requested.append(build_key)
        found: Package | None = lookup(self, build_key)
        return None if requested == [key] else found

    return run


@pytest.mark.parametrize(
    ("misfortune", "message"),
    [
        ("killed", r"was killed by SIGKILL; .*ran out of memory"),
        ("full", r"has no room left; .*larger disk.*No space left on device"),
    ],
)
def test_a_compile_that_fails_keeps_what_repeats_it(
    build: Callable[..., Package],
    home: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    misfortune: str,
    message: str,
) -> None:
    monkeypatch.setenv("STUB_QAIC", misfortune)
    with pytest.raises(CompileError, match=f"(?s){message}") as caught:
        build()
    (kept,) = (home / "failed").iterdir()
    assert str(kept) in str(caught.value)
    assert not [*(home / "staging").iterdir()]
    assert {entry.kind for entry in Store().entries()} <= {"graph", "companions", "failed"}
    monkeypatch.delenv("STUB_QAIC")
    assert script(kept).returncode == 0


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that its parent has not read yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_the_compiler_ends_with_the_build(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare()
    monkeypatch.setenv(sdk.COMPILER_VARIABLE, str(compiler(tmp_path / "sdk")))
    monkeypatch.setenv("STUB_QAIC", "hangs")
    note = folder / "stub.pid"

    def interrupt() -> None:
        while not (note.exists() and note.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        driver.run(folder)
    pid = int(note.read_text())
    deadline = time.monotonic() + 60
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not runs(pid)
    assert not (folder / "qpc").exists()


# --- the stub can fail -------------------------------------------------------------------------


def in_file(name: str, old: str, new: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return write


def in_graph(edit: Callable[[onnx.ModelProto], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "model.onnx"
        model = onnx.load(path, load_external_data=False)
        edit(model)
        onnx.save(model, path)

    return write


def node(model: onnx.ModelProto, kind: str) -> Any:
    return next(one for one in model.graph.node if one.op_type == kind)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (in_file(SCRIPT, " -mos=2", " -mos=two"), "expected a number"),
        (in_file(SCRIPT, " -mos=2", " -mos=2 -mos=2"), "given twice"),
        (in_file(SCRIPT, " -mos=2", " -moss=2"), "unknown option"),
        (in_file(SCRIPT, " -retained-state", ""), "-retained-state says otherwise"),
        (in_file(SCRIPT, "-aic-num-cores=16", "-aic-num-cores=17"), "out of range"),
        (in_file("specializations.json", '"64"', "64"), "expected texts of digits"),
        (in_file("specializations.json", '"seq_len"', '"length"'), "the graph has"),
        (in_file("custom_io.yaml", " - IOName: past_key.0\n", " - IOName: past\n"), "wrongly"),
        (in_file("custom_io.yaml", "   Precision", "  Precision"), "not in the form"),
        (in_file("custom_io.yaml", "float16", "mxint8"), "goes out as float16"),
        (in_file("mdp_partitions.json", '"numCores": 16', '"numCores": 8'), "differ"),
        (in_file("mdp_partitions.json", '    "MatMul_16"', '    "MatMul"'), "partitions list"),
        (in_file("node_precision_info.yaml", "logits", "logit"), "node precision info names"),
        (in_graph(lambda m: node(m, "CtxScatter").input.pop()), "onnx.checker|inputs, expected 3"),
        (in_graph(lambda m: m.functions.pop()), "has no body"),
        (in_graph(lambda m: setattr(m.functions[0], "domain", "qeff_zoo")), "was not lowered|no body"),
        (
            in_graph(lambda m: setattr(m.graph.output[1].type.tensor_type.shape.dim[1], "dim_value", 2)),
            "differ in shape",
        ),
        (
            in_graph(lambda m: node(m, "CtxScatter").input.__setitem__(0, "past_value.0")),
            "is written by",
        ),
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_the_stub_reports_errors(
    prepare: Prepare, script: Script, damage: Callable[[Path], None], message: str
) -> None:
    import re

    folder = prepare(num_devices=2, mdp_num_partitions=2, mos=2, node_precision_info=("MatMul",))
    damage(folder)
    (folder / SUMS).unlink()
    done = script(folder)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr


# --- documentation -----------------------------------------------------------------------------


def test_the_table_of_flags_is_that_of_the_options() -> None:
    text = (ROOT / "docs" / "qaic-reference.md").read_text()
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `--")]
    documented = [tuple(cell.strip(" `") for cell in row) for row in rows]
    assert documented == [
        (one.flag, f"-{one.spelling}" if one.spelling else "", one.help)
        for one in (OPTIONS[item.name] for item in fields(QaicOptions))
    ]
