# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-aic` without its SDK: what QNN's tools are told and read, prepared folders, and packages made of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from checkout import TESTS
from fixtures_builds import Models
from fixtures_prepared import Prepare, Script
from hypothesis import given
from hypothesis import strategies as draw
from stub_qaic import lowered

from qeff_zoo import cli, pipeline, targets
from qeff_zoo.cli import parser
from qeff_zoo.cli.inputs import choices_of
from qeff_zoo.cli.options import json_text
from qeff_zoo.errors import CompileError, PlanError
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.numerics import FLOAT32
from qeff_zoo.graph.states import State
from qeff_zoo.package import Package
from qeff_zoo.package.prepared import NOTE, PREPARED, PROGRAM, SCRIPT, SUMS
from qeff_zoo.pipeline import manifest_entries
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import Shape
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.targets.qaic import conflicts, driver
from qeff_zoo.targets.qnn_aic import command, configs, qnn_config, sdk
from qeff_zoo.targets.qnn_aic.options import SPELLED
from qeff_zoo.validation.trial import package_runner

STUB = TESTS / "stub_qnn"
SAMPLE = STUB / "qnn_config.json"
TARGET = targets.find("qnn-aic")
USUAL = {"num_devices": 1, "num_cores": 16}


@pytest.fixture(autouse=True)
def _small_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qeff_zoo.targets.qaic.lowering.lower", lowered.lower)
    monkeypatch.delenv(sdk.VARIABLE, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder like that of the SDK, whose tools are stubs."""
    root = tmp_path / "sdk"
    for folder in ("bin", "lib"):
        (root / folder / sdk.HOST).mkdir(parents=True)
    for tool in (sdk.CONVERTER, sdk.GENERATOR):
        path = root / "bin" / sdk.HOST / tool
        path.write_text(
            f'#!/bin/sh\nexec "{warm.PYTHON.executable}" "{STUB / "qnn-tools"}" {tool} "$@"\n'
        )
        path.chmod(0o755)
    for library in ("libQnnAic.so", "libQnnAicNetRunExtensions.so"):
        (root / "lib" / sdk.HOST / library).touch()
    (root / "sdk.yaml").write_bytes((STUB / "sdk.yaml").read_bytes())
    return root


@pytest.fixture
def target() -> str:
    return "qnn-aic"


@pytest.fixture
def compiler_environment(root: Path) -> dict[str, str]:
    return {sdk.VARIABLE: str(root)}


def program(**options: Any) -> ProgramPlan:
    return ProgramPlan(
        role="decoder",
        task="text-generation",
        shape=Shape(prefill_seq_len=16, ctx_len=64),
        variant={},
        specializations=[],
        weights=FLOAT32,
        flags={**USUAL, **options},
    )


def config(**said: Any) -> str:
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


# --- the commands ------------------------------------------------------------------------------


def test_the_commands_are_in_the_order_of_qefficient() -> None:
    lines = config(
        converter_args_extension="--onnx_defer_loading --define 'a b'",
        context_binary_generator_args_extension="--profiling_level basic",
    )
    assert TARGET.commands(program(mxint8_kv_cache=True, qnn_config=lines), "graph") == [
        [
            "qairt-converter", "--input_network", "model.onnx", "--output_path", "model.dlc",
            "--config", "custom_io_config.yaml", "--float_bias_bitwidth", "32", "--float_bitwidth", "16",
            "--preserve_io_datatype", "--onnx_skip_simplification", "--target_backend", "AIC",
            "--onnx_defer_loading", "--define", "a b",
        ],
        [
            "qnn-context-binary-generator", "--binary_file", "qnngraph.serialized",
            "--backend_binary", "programqpc.bin", "--output_dir", "qpc",
            "--backend", "lib/x86_64-linux-clang/libQnnAic.so", "--dlc_path", "model.dlc",
            "--config_file", "qnn_compiler_config.json",
            "--data_format_config", "qnn_data_format_config.json", "--log_level", "error",
            "--profiling_level", "basic",
        ],
    ]  # fmt: skip


def test_several_programs_have_files_of_their_own() -> None:
    first, second = TARGET.commands(program(), "draft")
    assert first[2:7:2] == ["draft.model.onnx", "draft.model.dlc", "draft.custom_io_config.yaml"]
    assert "qpc/draft" in second
    assert second[-4:-2] == ["--config_file", "draft.qnn_compiler_config.json"]


@pytest.mark.parametrize("words", ["--log_level debug", "--log_level=debug"])
def test_a_log_level_is_given_once(words: str) -> None:
    output = config(context_binary_generator_args_extension=words)
    found = command.generator(program(qnn_config=output), "graph")
    assert found[-len(words.split()) :] == words.split()
    assert sum(word.startswith("--log_level") for word in found) == 1


# --- --qnn-config ------------------------------------------------------------------------------

IMMUTABLE = [(key, name) for key, names in qnn_config.IMMUTABLE.items() for name in names]


@pytest.mark.parametrize(("key", "name"), IMMUTABLE)
@pytest.mark.parametrize("form", ["{} x", "--other 1 {}=x", "{}"])
def test_arguments_of_a_build_are_refused_by_name(key: str, name: str, form: str) -> None:
    found = qnn_config.problems({"qnn_config": config(**{key: form.format(name)})})
    assert f"--qnn-config: {key} has {name!r}, but {name}" in found[0]


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ({}, None),
        ({"SKIP_QNN_CONVERTER_STEP": False}, None),
        ({"SKIP_QNN_CONVERTER_STEP": True}, "compiled from its own graph"),
        ({"converter_args_extension": "--float_bit 32"}, "but --float_bitwidth follows"),
        ({"converter_args_extension": "-i x"}, "by their long names"),
        ({"converter_args_extension": "--define 'x"}, "No closing quotation"),
        ({"converter_args_extension": "--encodings /tmp/x"}, "a path of this machine"),
        ({"converter_args_extension": "--encodings=~/x"}, "a path of this machine"),
        ({"converter_args_extension": "--value -1"}, None),
        ({"converter_args_extension": ["--x"]}, "expected texts for"),
        ({"converter_arguments": "--x"}, "'converter_arguments' is '--x'; expected texts for"),
        ({"qnn_compilation_backend": {"compiler_hardware_version": "3.0"}}, None),
        ({"qnn_compilation_backend": {"graph_names": ["x"]}}, "graph_names follows"),
        ({"qnn_compilation_backend": {"compiler_retained_state": False}}, "state follows"),
        ({"qnn_compilation_backend": {"compiler_num_of_cores": 2}}, "Use --num-cores."),
        ({"qnn_compilation_backend": {"compiler_mxfp6_matmul_weights": True}}, "Use --mxfp6-matmul."),
        ({"qnn_compilation_backend": {"compiler_max_out_channel_split": "2"}}, "Use --mos."),
        ({"qnn_compilation_backend": {"compiler_enable_depth_first": True}}, None),
        ({"qnn_compilation_backend": {"compiler_x": {}}}, "expected a text, a whole number"),
        ({"qnn_compilation_backend": {"compiler_x": "/tmp/y"}}, "a path of this machine"),
        ({"converter_args_extension": "--x " + "y" * 1000}, "at most 1000"),
        ({"converter_args_extension": '--x "y"'}, "neither quotes nor backslashes"),
    ],
)  # fmt: skip
def test_allowed_keys_of_a_file(output: dict[str, Any], problem: str | None) -> None:
    found = qnn_config.problems({"mos": 4, "qnn_config": config(**output)})
    assert len(found) == bool(problem), found
    assert not problem or problem in found[0]


@given(draw.text(max_size=60), draw.sampled_from([name for _, name in IMMUTABLE]))
def test_accepted_arguments_are_not_repeated(text: str, name: str) -> None:
    for words in (text, f"{text} {name}", f"{text} {name[:-1]}=x"):
        settings = {"qnn_config": config(**dict.fromkeys(qnn_config.IMMUTABLE, words))}
        if qnn_config.problems(settings):
            continue
        for tool in TARGET.commands(program(**settings), "graph"):
            names = [word.partition("=")[0] for word in tool]
            assert all(names.count(one) <= 1 for _, one in IMMUTABLE)
            assert all(word.isprintable() for word in tool)


@pytest.mark.parametrize("text", ["", "[]", "1", "qnn_config.json"])
def test_what_is_no_object_is_refused(text: str) -> None:
    assert "expected the text of a JSON object" in qnn_config.problems({"qnn_config": text})[0]


def test_a_plan_refuses_all_conflicts_at_once(models: Models, home: Path) -> None:
    output = config(
        converter_args_extension="--config x", qnn_compilation_backend={"graph_names": 1}
    )
    wrong = Request(target="qnn-aic", num_devices=7, aic_hw_version="ai200", qnn_config=output)
    with pytest.raises(PlanError) as caught:
        pipeline.make_plan(str(models.llama), wrong)
    assert len(caught.value.problems) == 4
    with pytest.raises(
        PlanError, match="--qnn-config is for target qnn-aic, and --target is 'qaic'"
    ):
        pipeline.make_plan(str(models.llama), Request(target="qaic", qnn_config="{}"))


def test_the_content_of_the_file_is_what_counts(models: Models, home: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps(json.loads(SAMPLE.read_text())))

    def key(**choices: Any) -> str:
        request = Request(target="qnn-aic", **choices)
        return pipeline.make_plan(str(models.llama), request)[1].build_key

    one = key(qnn_config=json_text(str(SAMPLE)))
    assert key(qnn_config=json_text(str(tmp_path / "other.json"))) == one
    assert key() != one


def test_the_spelling_of_qefficient(capsys: pytest.CaptureFixture[str]) -> None:
    def requested(*words: str) -> dict[str, Any]:
        found = choices_of(parser().parse_args(["build", "model", *words]))
        return {name: value for name, value in found.items() if value is not None}

    text = json_text(str(SAMPLE))
    both = {"target": "qnn-aic", "qnn_config": text}
    assert requested("--enable-qnn") == {"target": "qnn-aic"}
    assert requested("--enable-qnn", str(SAMPLE)) == both
    assert requested("--enable-qnn", "--qnn-config", str(SAMPLE)) == both
    assert requested("--enable-qnn", "--target", "qnn-aic") == {"target": "qnn-aic"}
    with pytest.raises(PlanError, match="--target is 'ort', and --enable-qnn means --target 'qnn"):
        requested("--enable-qnn", "--target", "ort")
    with pytest.raises(SystemExit):
        requested("--enable-qnn", "/nowhere/x.json")
    assert "cannot read '/nowhere/x.json'" in capsys.readouterr().err


# --- what the tools read -----------------------------------------------------------------------

SPECIALIZATIONS = [
    {"name": "Prefill", "symbols": {"batch_size": "1", "seq_len": "32", "ctx_len": "128"}},
    {"name": "Decode", "symbols": {"batch_size": "4", "seq_len": "1", "ctx_len": "128"}},
]
KEYS = State(name="past_key.0", kind="growing", layer=0, axes=(4, 2, "ctx_len", 64))


def test_the_sizes_of_all_specializations() -> None:
    text = configs.custom_io(
        [
            ("input_ids", "int64", ["batch_size", "seq_len"]),
            (KEYS.name, "float32", [*KEYS.axes]),
        ],
        [("logits", "float32"), (KEYS.output, "float32")],
        {KEYS.name: "mxint8", KEYS.output: "mxint8"},
        SPECIALIZATIONS,
    )
    assert yaml.safe_load(text) == {
        "Input Tensor Configuration": [
            {
                "Name": "input_ids",
                "Desired Model Parameters": {"DataType": "int64", "Shape": "(1, 32), (4, 1)"},
            },
            {
                "Name": "past_key.0",
                "Desired Model Parameters": {"DataType": "uint8", "Shape": "(4, 2, 128, 64)"},
            },
        ],
        "Output Tensor Configuration": [
            {"Name": "logits", "Desired Model Parameters": {"DataType": "float32"}},
            {"Name": "past_key.0_RetainedState", "Desired Model Parameters": {"DataType": "uint8"}},
        ],
    }


def test_formats_of_states_are_set_in_every_graph() -> None:
    graphs = configs.graph_names(SPECIALIZATIONS)
    assert graphs == ["model_configuration_1", "model_configuration_2"]
    assert configs.graph_names(SPECIALIZATIONS[:1]) == ["model"]
    message = json.loads(configs.data_formats([KEYS], graphs))["graphs"]
    assert [graph["graph_name"] for graph in message] == graphs
    assert message[0]["tensors"] == message[1]["tensors"] == [
        {"tensor_name": "past_key_0", "dataFormat": "QNN_TENSOR_DATA_FORMAT_MX"},
        {"tensor_name": "past_key_0_RetainedState", "dataFormat": "QNN_TENSOR_DATA_FORMAT_MX"},
    ]  # fmt: skip


def test_values_of_the_file_precede_defaults() -> None:
    settings = {"compiler_stat_level": 70, "compiler_more": "x"}
    options = {**USUAL, "num_cores": 14, "mos": 2, "mxfp6_matmul": True}
    found = json.loads(
        configs.backend_config(options, settings, ["model"], "t.json", retains=False)
    )
    assert found == {
        **configs.DEFAULTS, **settings, "compiler_num_of_cores": 14, "compiler_mxfp6_matmul_weights": True,
        "compiler_max_out_channel_split": "2", "compiler_retained_state": False, "graph_names": ["model"],
        "compiler_mdp_load_partition_config": "t.json",
    }  # fmt: skip


def test_every_option_is_used_and_documented() -> None:
    elsewhere = {"num_devices", "mxint8_kv_cache", "qnn_config"}
    ours = {name for name, option in OPTIONS.items() if "qnn-aic" in option.targets}
    assert ours == {*SPELLED.values()} | elsewhere
    text = (STUB.parent.parent / "docs" / "qaic-reference.md").read_text()
    for key, name in SPELLED.items():
        assert f"| `{key}` | `{OPTIONS[name].flag}` |" in text


def test_slices_are_on_every_device() -> None:
    assert json.loads(configs.slicing_config(2)) == {
        "connections": [{"devices": [0, 1], "type": "p2p"}],
        "partitions": [{"name": "Partition0", "devices": [{"deviceId": 0}, {"deviceId": 1}]}],
    }


# --- the SDK -----------------------------------------------------------------------------------


def test_the_sdk_is_located_by_the_variable(root: Path, tmp_path: Path) -> None:
    environment = {sdk.VARIABLE: str(root)}
    assert sdk.lacking(environment) is None
    assert sdk.installed(environment) == "2.51.0.260929"
    assert (sdk.lacking({}), sdk.installed({})) == ("QNN_SDK_ROOT is not set", "absent")
    assert sdk.installed({sdk.VARIABLE: str(tmp_path)}) == "absent"
    (root / "sdk.yaml").write_text("product: x\n")
    assert sdk.installed(environment) == "unknown"
    (root / "bin" / sdk.HOST / sdk.GENERATOR).unlink()
    assert "there is no qnn-context-binary-generator in" in str(sdk.lacking(environment))


def test_a_build_without_the_sdk_fails_at_once(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline.Assembly, "trace", pytest.fail)
    assert cli.main(["build", str(models.llama), "--enable-qnn"]) == 1
    printed_text = capsys.readouterr().err
    assert "QNN_SDK_ROOT is not set" in printed_text
    assert "--prepare-only" in printed_text


# --- prepared folders --------------------------------------------------------------------------


def test_what_is_prepared(prepare: Prepare, tmp_path: Path) -> None:
    folder = prepare(num_devices=2, qnn_config=json_text(str(SAMPLE)))
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "model.onnx", "weights.safetensors", "specializations.json", "custom_io_config.yaml",
        "qnn_compiler_config.json", "qnn_compile_backend.json", "tensor_slicing.json", SCRIPT, SUMS,
        PREPARED,
    }  # fmt: skip
    assert "qnn_data_format_config.json" not in names
    for name in names - {"weights.safetensors"}:
        assert str(tmp_path).encode() not in (folder / name).read_bytes(), name


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"mxint8_kv_cache": True},
        {"num_devices": 2, "mxfp6_matmul": True, "mos": 2, "stats_level": 70},
        {"qnn_config": json_text(str(SAMPLE))},
    ],
)
@pytest.mark.sampled(2)
def test_from_a_checkpoint_to_a_package(
    prepare: Prepare, script: Script, monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any]
) -> None:
    monkeypatch.setattr(conflicts, "_of_cache", lambda *_: [])  # the small graph has longer rows
    folder = prepare(**choices)
    done = script(folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "qpc" / PROGRAM).read_bytes().startswith(b"NO QPC")
    assert not (folder / "model.dlc").exists()
    log = (folder / driver.LOG).read_text()
    assert "stub of qairt-converter: --input_network model.onnx" in log
    note = json.loads((folder / "qpc" / NOTE).read_text())
    assert (note["compiler"], note["version"]) == (sdk.GENERATOR, "2.51.0.260929")
    package = adopt(folder, folder / "qpc", Store())
    assert package.validated == "none"
    assert package.programs[0].compiler == {"name": sdk.GENERATOR, "version": "2.51.0.260929"}
    kept = {file["path"]: file["role"] for file in package.manifest["files"]}
    assert kept["qpc/programqpc.bin"] == kept["qpc/qnngraph.serialized.bin"] == "program"
    assert {role for name, role in kept.items() if "qnn_" in name or "_config.yaml" in name} == {
        "compile-config"
    }
    assert not kept.keys() & {"model.onnx", "weights.safetensors", SCRIPT, f"qpc/{NOTE}"}
    storage = "mxfp6" if "mxfp6_matmul" in choices else "fp16"
    assert package.manifest["weights"]["storage"] == storage
    cache = "mxint8" if "mxint8_kv_cache" in choices else "float16"
    assert {state["dtype"] for state in package.manifest["programs"][0]["states"]} == {cache}


def test_the_script_refuses_what_it_finds_changed(prepare: Prepare, script: Script) -> None:
    folder = prepare()
    (folder / "qpc").mkdir()
    assert "'qpc' is there already" in script(folder).stderr
    (folder / "qpc").rmdir()
    assert "QNN_SDK_ROOT is not set" in script(folder, QNN_SDK_ROOT="").stderr
    assert "No qairt-converter in '/nowhere/bin/" in script(folder, QNN_SDK_ROOT="/nowhere").stderr
    (folder / "custom_io_config.yaml").write_text("")
    done = script(folder)
    assert (done.returncode, "Files differ from what was prepared" in done.stderr) == (1, True)
    assert not (folder / "qpc").exists()


@pytest.mark.parametrize("tool", [sdk.CONVERTER, sdk.GENERATOR])
@pytest.mark.parametrize("misfortune", ["killed", "writes nothing"])
@pytest.mark.sampled(2)
def test_a_compile_that_fails_leaves_no_qpc(
    prepare: Prepare, script: Script, tool: str, misfortune: str
) -> None:
    folder = prepare()
    done = script(folder, STUB_QNN=f"{tool}:{misfortune}")
    assert done.returncode == (137 if misfortune == "killed" else 1)
    assert not (folder / "qpc").exists()
    assert script(folder).returncode == 0  # once that is mended


# --- building where the SDK is -----------------------------------------------------------------


@pytest.fixture
def build(
    models: Models, home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Package]:
    """Give a function that builds with the stubs; there is no card to call the package on."""
    monkeypatch.setenv(sdk.VARIABLE, str(root))
    monkeypatch.setattr(package_runner, "call_once", lambda package: None)
    monkeypatch.setattr(manifest_entries, "has_uncommitted_changes", lambda: False)
    models.trace(models.llama, home)

    def run(**choices: Any) -> Package:
        request = Request(target="qnn-aic", ctx_len=64, prefill_seq_len=16, **choices)
        return pipeline.build(str(models.llama), request, validate=False).package

    return run


def test_a_build_compiles(build: Callable[..., Package]) -> None:
    package = build(num_devices=2)
    kept = {file["path"]: file["role"] for file in package.manifest["files"]}
    assert kept["qpc/programqpc.bin"] == "program"
    assert kept["tensor_slicing.json"] == kept["qnn_compile_backend.json"] == "compile-config"
    assert kept[driver.LOG] == "log"
    assert not kept.keys() & {"model.onnx", "model.dlc", SCRIPT, f"qpc/{NOTE}"}
    assert package.manifest["spec"]["toolchain"][sdk.GENERATOR] == "2.51.0.260929"


def test_a_tool_that_is_killed_is_named(
    build: Callable[..., Package], home: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_QNN", f"{sdk.CONVERTER}:killed")
    with pytest.raises(CompileError, match=r"was killed by SIGKILL; .*ran out of memory"):
        build()
    (kept,) = (home / "failed").iterdir()
    monkeypatch.delenv("STUB_QNN")
    assert script(kept).returncode == 0


# --- the stub can fail -------------------------------------------------------------------------


def in_file(name: str, old: str, new: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return write


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (in_file(SCRIPT, "--float_bitwidth 16", "--float_bitwidth 32"), "expected '16'"),
        (in_file(SCRIPT, " --preserve_io_datatype", ""), "first"),
        (in_file(SCRIPT, "--target_backend AIC", "--target_backend AIC --backend x"), "unknown"),
        (in_file(SCRIPT, "--log_level error", "--log_level error --config_file x"), "given twice"),
        (in_file(SCRIPT, "--data_format_config qnn_data_format_config.json", ""), "says otherwise"),
        (in_file("custom_io_config.yaml", "Name: past_key.0", "Name: past_key_0"), "the graph has"),
        (in_file("custom_io_config.yaml", "uint8", "float16"), "goes out as uint8"),
        (in_file("custom_io_config.yaml", "(1, 16), (1, 1)", "(1, 16)"), "for seq_len|graph_names"),
        (in_file("custom_io_config.yaml", "(1, 1, 64", "(1, 2, 64"), "has 2 for 1"),
        (in_file("custom_io_config.yaml", "int64", "int32"), "the graph has int64"),
        (in_file("qnn_compile_backend.json", '"compiler_num_of_cores": 16', '"cores": 16'), "cores"),
        (in_file("qnn_compile_backend.json", "model_configuration_2", "other"), "graph_names is"),
        (in_file("qnn_data_format_config.json", "past_key_0", "past_key.0"), "has other values"),
        (in_file("qnn_compiler_config.json", "NetRun", "Run"), "shared_library_path is not found"),
        (in_file("tensor_slicing.json", '"deviceId": 1', '"deviceId": 2'), "devices are"),
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_the_stub_reports_errors(
    prepare: Prepare,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    import re

    monkeypatch.setattr(conflicts, "_of_cache", lambda *_: [])
    folder = prepare(num_devices=2, mxint8_kv_cache=True)
    damage(folder)
    (folder / SUMS).unlink()
    done = script(folder)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
