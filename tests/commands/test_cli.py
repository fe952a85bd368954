# SPDX-License-Identifier: Apache-2.0
"""The command line, as people and scripts meet it: what it prints where, and how it ends."""

import argparse
import dataclasses
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm
from fixtures_builds import TIMEOUT, Models, Probed, command, files_below, kept
from fixtures_cli import run
from package_builder import overwrite
from transformers import CONFIG_MAPPING

from qeff_zoo import cli, contract, pipeline, registry, scaffold
from qeff_zoo.cli import parser as command_line
from qeff_zoo.contract.commands import INPUTS
from qeff_zoo.errors import ZooError
from qeff_zoo.package import Package
from qeff_zoo.terminal import progress_bars
from qeff_zoo.terminal.progress import Silent
from qeff_zoo.validation import ladder as validation

COMMANDS = (
    ("build",), ("plan",), ("export",), ("adopt",), ("run",), ("serve",), ("serve-args",), ("chat",), ("bench",),
    ("validate",), ("inspect",), ("list",), ("show",), ("quantize",), ("finetune",), ("predict",),
    ("farm", "plan"), ("farm", "run"), ("farm", "status"), ("pull",), ("lock",), ("repair",),
    ("bundle", "export"), ("bundle", "import"), ("ls",), ("resolve",), ("yank",), ("publish",), ("copy",), ("site",),
    ("sign",), ("trust", "add"), ("trust", "ls"), ("trust", "rm"),
    ("cache", "ls"), ("cache", "rm"), ("cache", "gc"), ("cache", "verify"), ("doctor",), ("new",),
)  # fmt: skip
KEY = r"qz1-[0-9a-f]{64}"


class Places:
    """What the table of commands talks about, by name.

    Args:
        models: The checkpoints.
        home: The store; has a package of `llama` and one of `bert`.
        folder: Empty.
    """

    def __init__(self, models: Models, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.llama, self.bert = models.llama, models.bert
        self.package, self.encoder = (
            models.build(models.llama, home),
            models.build(models.bert, home),
        )
        self.prompts = folder / "prompts.txt"
        self.prompts.write_text("fox\n\nthe lazy dog\n")

    def argv(self, template: str) -> list[str]:
        """Fill in a command."""
        named = {name: str(value) for name, value in vars(self).items()}
        named |= {"package": str(self.package.path), "encoder": str(self.encoder.path)}
        return [part.format(**named, key=self.package.build_key[:16]) for part in template.split()]


@pytest.fixture
def places(models: Models, home: Path, tmp_path: Path) -> Places:
    return Places(models, home, tmp_path)


def answer(argv: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command with --json that must succeed silently; give its answer."""
    code, out, err = run([*argv, "--json"], capsys)
    assert (code, err) == (0, "")
    return json.loads(out)


# id, command, exit code, what stdout and what stderr must match; "" is nothing at all
TABLE = [
    ("version", "--version", 0, rf"qeff-zoo {re.escape(version('qeff-zoo'))}\n", ""),
    ("version-short", "-V", 0, r"qeff-zoo \S+\n", ""),
    ("nothing", "", 2, "", "usage: qeff-zoo.*COMMAND"),
    ("unknown-command", "bild", 2, "",
     r"^usage: qeff-zoo \[options\] COMMAND \.\.\.\n[^\n]*choice: 'bild'\. Did you mean 'build'\? See [^\n]*\n$"),
    ("unknown-verb", "cache list-all", 2, "", "invalid choice: 'list-all'; expected ls, rm, gc, verify. See "),
    ("unknown-option", "build {llama} --fast", 2, "", "unrecognized arguments: --fast. See `qeff-zoo build --help`"),
    ("no-model", "build", 2, "",
     r"^usage: qeff-zoo build \[options\] MODEL\n[^\n]*required: MODEL. See `qeff-zoo build --help`.\n$"),
    ("not-a-number", "plan {llama} --ctx-len many", 2, "", "usage: .*--ctx-len.*'many'"),
    ("not-numbers", "plan {bert} --seq-lens 8,x", 2, "", "usage: .*--seq-lens.*'8,x'"),
    ("cache-without-verb", "cache", 2, "", "usage: qeff-zoo cache.*COMMAND"),
    ("export-nowhere", "export {llama}", 2, "", "usage: .*--output"),
    ("list", "list", 0, r"model_type +tasks.*\nllama +text-generation, text-classification, .*LlamaForCausalLM", ""),
    ("list-models", "list --models", 0,
     r"model_id +recipe +task +status.*\nmeta-llama/Llama-3\.1-8B +llama +text-generation +tiny\n", ""),
    ("show", "show llama", 0,
     r"llama: .*text-generation.*transform rms_norm +RMS norms become .*--profile latency"
     r".*checkpoint model +tiny-llama\n.*", ""),
    ("show-models", "show llama", 0, r"tiny model +meta-llama/Llama-3\.1-8B\n", ""),
    ("show-unknown", "show lama", 1, "", "No recipe for model_type 'lama'.*'llama'.*qeff-zoo list"),
    ("plan", "plan {llama} --ctx-len 64", 0,
     r"^option .*--ctx-len +64 +user\n.*\nfield .*weights +sha256:[0-9a-f]{12}[.]{3}\n.*"
     rf"build_key  {KEY}\n$", ""),
    ("plan-conflicts", "plan {llama} --ctx-len 0 --weights int3 --pooling cls", 1, "",
     r"--weights is 'int3'.*--ctx-len is 0.*--pooling does not apply"),
    ("plan-misspelled", "plan {llama} --target qiac", 1, "",
     r"expected one of ort, .*[.] Did you mean 'qaic'[?] Correct it[.]\n$"),
    ("plan-qaic", "plan {llama} --target qaic --num-devices 2", 0,
     r"command    qaic-compile -aic-hw -aic-hw-version=ai100 -m=model.onnx .* -aic-binary-dir=qpc\n$", ""),
    ("plan-qaic-warns", "plan {llama} --target qaic --mdts-mos 2", 0, r"-mdts-mos=2", "retained states without their"),
    ("build-no-compiler", "build {llama} --target qaic -q", 1, "", "no qaic-compile in .*--prepare-only --output"),
    ("prepare-nowhere", "build {llama} --target qaic --prepare-only", 1, "", "--prepare-only .* without --output"),
    ("prepare-ort", "build {llama} --prepare-only -o {folder}/out -q", 1, "", "Target 'ort' is compiled where"),
    ("adopt-nothing", "adopt {folder} {folder}", 1, "", "is no prepared folder: it has no prepared.json"),
    ("plan-nothing", "plan ./nowhere", 1, "", "No file or folder .*nowhere'.*Check the path"),
    ("plan-task", "plan {bert} --task summarization", 1, "", r"'summarization' \(user\).*--task"),
    ("build-hit", "build {llama} --no-validate", 0, rf"{{home}}/packages/{KEY}\n$",
     r"llama: was in the store already \(\d+\.\d s\)\n$"),
    ("build", "build {llama} --no-validate --weights int8 -q", 0, rf"{{home}}/packages/{KEY}\n$",
     r"llama: built, validated: none \(\d+\.\d s\)\n$"),
    ("build-out", "build {llama} --no-validate -o {folder}/out", 0, r"{folder}/out\n$", "llama: "),
    ("export", "export {llama} -o {folder}/out", 0, r"{folder}/out/graph\.onnx\n$", ""),
    ("run", "run {package} --prompt fox --generation-len 4", 0, r".+\n$", r"tokens at .* in all\n$"),
    ("run-pair", "run {package} --prompt a --pair b", 1, "", "--pair does not apply to text-gen"),
    ("run-words", "run {package} --prompt a --word-timestamps", 1, "",
     "--word-timestamps does not apply to text-generation; expected a package for automatic-speech"),
    ("run-key", "run {key} --prompt fox --generation-len 4", 0, r".+\n$", r"tokens at"),
    ("run-variant", "run ort-fp32-pl128-cl128-bs1/{key} --prompt fox --generation-len 4", 0, r".+\n$", r"tokens at"),
    ("run-file", "run {package} --prompts-file {prompts} --generation-len 2", 0,
     r"^fox\n-> .*\n\nthe lazy dog\n-> ", "tokens at"),
    ("run-chat", "run {package} --prompt fox --chat --generation-len 4", 0, r".+\n$", "tokens at"),
    ("run-without", "run {package}", 1, "",
     r"No text is given for .*text-generation; expected .*Use --prompt TEXT or --prompts-file FILE[.]\n$"),
    ("run-no-prompts", "run {package} --prompts-file /dev/null", 1, "", "No text is given"),
    ("run-elsewhere", "run org/absent", 1, "", "No package at 'org/absent'.*`qeff-zoo pull org/absent`"),
    ("run-no-file", "run {package} --prompts-file {folder}/absent", 1, "", "Cannot read .*absent'"),
    ("run-nothing", "run qz1-0000 --prompt fox", 1, "", "No package at 'qz1-0000'.*cache ls"),
    ("run-misspelled-path", "run {folder}/prompt.txt --prompt fox", 1, "",
     "No package at '.*/prompt.txt'.*Did you mean '.*/prompts.txt'[?] Run"),
    ("run-misspelled", "run lama --prompt fox", 1, "", "No package at 'lama'.*Did you mean 'llama'[?] Run"),
    ("run-length", "run {package} --prompt fox --generation-len 0", 1, "", "Cannot generate 0 tokens"),
    ("run-sampling", "run {package} --prompt fox --temperature 9 --top-p 2 --min-p -1", 1, "",
     r"sample with top_p 2\.0; expected 0 to 1\..*sample with min_p -1\.0"),
    ("run-seed", "run {package} --prompt fox --seed 1", 1, "", "--seed is for tokens drawn at random"),
    ("embed-one", "run {encoder} --prompt fox", 0, r"^(-?\d\.\d{{6}} ){{63}}-?\d\.\d{{6}}\n$", ""),
    ("embed-two", "run {encoder} --prompt fox --prompt dog", 0,
     r"cosine +1 +2\n.*fox +1\.000 +-?0\.\d+\ndog +-?0\.\d+ +1\.000\n$", ""),
    ("inspect", "inspect {package}", 0, r"^llama: text-generation.*Run it\n  qeff-zoo run ", ""),
    ("inspect-verify", "inspect {package} --verify", 0, r"Every file is what the manifest says\.\n$", ""),
    ("inspect-nothing", "inspect {folder}", 1, "", "is not a package.*Check the path"),
    ("validate-nothing", "validate {folder}/absent", 1, "", "No package at "),
    ("cache-ls", "cache ls", 0,
     r"package +complete +\d.* llama +ort-fp32-pl128-cl128-bs1 · [0-9a-f]{{8}}\n", "Store: {home}\n"),
    ("cache-gc", "cache gc", 0, r"^kind", ""),
    ("cache-rm-dry", "cache rm {key} --dry-run", 0, r"package +complete .* llama +ort-", r"^\d+ kB to be freed\n$"),
    ("cache-rm", "cache rm llama bert", 0, r"package .*\n.*package .*\n$", r"^1\.\d+ MB freed\n$"),
    ("cache-rm-nothing", "cache rm llama nothing", 1, "", "No package 'nothing' in the store.*cache ls"),
    ("cache-verify", "cache verify", 0,
     r"^((llama|bert) ort-fp32-\S+ · [0-9a-f]{{8}}: intact\n){{2}}(qg1-[0-9a-f]{{8}}: intact\n){{2}}$", ""),
    ("doctor", "doctor", 0, r"python +.*\n.*onnxruntime", ""),
    ("new-known", "new {llama}", 1, "", "There is a recipe for model_type 'llama' already"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "code", "out", "err"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_commands(
    template: str,
    code: int,
    out: str,
    err: str,
    places: Places,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, *printed = run(places.argv(template), capsys)

    assert found == code, printed
    for text, wanted in zip(printed, (out, err), strict=True):
        pattern = re.sub(
            r"\{(home|folder)\}", lambda name: re.escape(str(vars(places)[name[1]])), wanted
        ).replace("{{", "{").replace("}}", "}")  # fmt: skip
        assert re.search(pattern, text, re.DOTALL) if wanted else text == "", text
    if code == 1:  # one message, in sentences
        assert printed[1].startswith("qeff-zoo: ")
        assert printed[1].endswith(".\n")
        assert "Traceback" not in printed[1]
    assert [entry.kind for entry in kept(places.home)].count("staging") == 0


# --- help -----------------------------------------------------------------------------------------
def _parsers(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    nested = [item for item in parser._actions if isinstance(item, argparse._SubParsersAction)]
    for action in nested:
        for name, child in action.choices.items():
            yield from _parsers(child, (*path, name))
    if not nested:
        yield path, parser


def test_the_table_of_commands_is_complete_and_every_answer_can_be_json() -> None:
    parsers = dict(_parsers(command_line()))

    assert tuple(parsers) == COMMANDS
    for path, parser in parsers.items():
        assert "--json" in parser._option_string_actions, path
        short = {flag for flag in parser._option_string_actions if not flag.startswith("--")}
        assert short <= {"-h", "-o", "-q", "-v", "-V"}, path


@pytest.mark.parametrize("command", ["run", "serve", "bench"])
def test_every_option_of_a_task_is_one_of_the_command(command: str) -> None:
    (parser,) = (one for path, one in _parsers(command_line()) if path == (command,))
    known = {action.dest for action in parser._actions}
    for name in contract.NAMES:
        assert {*contract.find(name).commands.options(command)} <= known, name


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*path, "--help"], capsys)

    assert (code, err) == (0, "")
    assert out.startswith(f"usage: qeff-zoo {' '.join(path)} ")
    *_, parser = (parser for name, parser in _parsers(command_line()) if name == path)
    assert all(action.help for action in parser._actions if action.option_strings), path


@pytest.mark.parametrize("content", ["[]", "{", '{"model_type": 1}'])
def test_help_of_a_model_with_an_unreadable_config_lists_every_task_s_options(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    for model in (str(tmp_path), "x" * 5000):
        code, out, _ = run(["build", model, "--help"], capsys)
        assert code == 0
        assert {"--ctx-len", "--seq-lens"} <= set(out.split())


def test_help_lists_every_command_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)

    assert code == 0
    listed = re.findall(r"^  ([a-z][a-z-]*)(?:  +\w|$)", out, re.MULTILINE)
    assert sorted(listed) == sorted({path[0] for path in COMMANDS})
    assert out.index("\nbuild packages:\n") < out.index("\nrun packages:\n")


@pytest.mark.parametrize(
    ("argv", "shown", "hidden"),
    [
        ("build {bert} --help", {"--seq-lens", "--pooling", "--weights"}, {"--ctx-len", "--num-cores"}),
        ("build {llama} --help", {"--ctx-len"}, {"--seq-lens", "--pooling", "--mxfp6-matmul"}),
        ("plan {llama} --target qaic --help", {"--ctx-len", "--mxfp6-matmul"}, {"--seq-lens"}),
        ("build {llama} --task feature-extraction --help", {"--pooling"}, {"--ctx-len"}),
        ("build {llama} --help-all", {"--ctx-len", "--pooling", "--mxfp6-matmul"}, set()),
        ("build ./nowhere --help", {"--ctx-len", "--pooling"}, {"--mxfp6-matmul"}),
        ("run {package} --help", {"--prompt", "--temperature", "--json"}, {"--image", "--translate"}),
        ("run {package} --help-all", {"--prompt", "--image", "--translate"}, set()),
        ("run nowhere --help", {"--prompt", "--image"}, set()),
        ("serve {package} --help", {"--port", "--block-attention"}, {"--allow-image-url"}),
        ("bench {package} --help", {"--prompt-len"}, {"--audio", "--language"}),
    ],
)  # fmt: skip
def test_help_shows_the_options_that_apply(
    argv: str,
    shown: set[str],
    hidden: set[str],
    places: Places,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(places.argv(argv), capsys)

    assert code == 0
    flags = set(re.findall(r"--[a-z0-9-]+", out))
    assert (shown - flags, hidden & flags) == (set(), set())


def test_flags_are_the_parameters_of_python(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {
        "target": "ort", "weights": "int4", "profile": "throughput", "prefill_seq_len": 8, "ctx_len": 32,
        "full_batch_size": 2,
    }  # fmt: skip
    argv = [
        str(item)
        for name, value in flags.items()
        for item in (f"--{name.replace('_', '-')}", value)
    ]
    found = answer(["plan", str(places.llama), *argv], capsys)

    chosen = {
        path: field["value"] for path, field in found["fields"].items() if field["by"] == "user"
    }
    places_of = {"target": "target.name", "weights": "quantization.weights"}
    del flags["profile"]  # a set of sizes, each of which says that it is the profile's
    assert chosen == {places_of.get(name, f"shape.{name}"): flags[name] for name in flags}


# --- the contract that scripts rely on ------------------------------------------------------------
def test_build_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["build", str(places.llama), "--no-validate", "--weights", "int4"]
    made, again = answer(argv, capsys), answer(argv, capsys)

    for found in (made, again):
        assert {"path", "build_key", "hit", "seconds", "peak_rss_bytes"} <= found.keys()
        assert (found["validated"], found["largest_errors"]) == ("none", {})
        assert Package.open(found["path"]).build_key == found["build_key"]
        assert all(isinstance(value, float) for value in found["seconds"].values())
        assert 10_000_000 < found["peak_rss_bytes"] < 10**11
    assert (made["hit"], again["hit"]) == (False, True)
    stages = ["plan", "graph", "lower", "importance", "formats", "weights", "compile", "package"]
    assert list(made["seconds"]) == stages
    assert list(again["seconds"]) == ["plan"]


def test_export_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(["export", str(places.llama), "-o", str(places.folder / "out")], capsys)

    assert list(found) == ["path", "seconds", "peak_rss_bytes"]
    assert Path(found["path"]) == places.folder / "out" / "graph.onnx"
    assert Path(found["path"]).is_file()


@pytest.mark.parametrize("name", contract.NAMES)
def test_run_without_input_names_the_inputs_of_the_task(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.api.find_package", lambda _: SimpleNamespace(task=name))
    usages = {
        "prompt": "--prompt TEXT",
        "prompts_file": "--prompts-file FILE",
        "image": "--image FILE",
        "video": "--video PATH",
        "audio": "RECORDING",
    }
    task = contract.find(name)
    assert {*usages} == set().union(*INPUTS.values())

    assert cli.main(["run", "package"]) == 1

    error = capsys.readouterr().err
    assert f"No {task.reads} is given for 'package', a package for {name}; expected" in error
    named = {option for option, usage in usages.items() if usage in error}
    assert named == {*usages} & {*task.commands.run_options}
    required, _, optional = error.partition("if needed")
    assert all(usages[option] in required for option in INPUTS[task.reads])
    assert {option for option in named if usages[option] in optional} == named - {
        *INPUTS[task.reads]
    }


def test_run_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    argv = places.argv("run {package} --prompt fox --prompts-file {prompts} --generation-len 5")
    found = answer(argv, capsys)

    assert list(found) == ["outputs", "metrics"]
    assert [item["prompt"] for item in found["outputs"]] == ["fox", "fox", "the lazy dog"]
    for item in found["outputs"]:
        assert list(item) == ["prompt", "text", "token_ids", "finish_reason"]
        assert 1 <= len(item["token_ids"]) <= 5  # the generated ids alone
    assert found["outputs"][0] == found["outputs"][1]
    assert all(isinstance(value, int | float) for value in found["metrics"].values())


def test_run_applies_its_sampling_options(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = places.argv("run {package} --prompt fox --generation-len 9 --temperature 3 --seed")
    one, same, other = (
        answer([*argv, seed, "--logprobs", "2"], capsys)["outputs"][0] for seed in ("1", "1", "2")
    )
    assert one == same != other
    assert [item["token_id"] for item in one["logprobs"]] == one["token_ids"]
    assert all(item["logprob"] < 0 and len(item["top"]) == 2 for item in one["logprobs"])

    stop = one["text"][2:4]
    (cut,) = answer([*argv, "1", "--stop", stop], capsys)["outputs"]
    assert (cut["text"], cut["finish_reason"]) == (one["text"][: one["text"].index(stop)], "stop")


def test_run_embeds_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(places.argv("run {encoder} --prompt fox --prompt dog"), capsys)

    assert list(found) == ["outputs"]
    assert [item["text"] for item in found["outputs"]] == ["fox", "dog"]
    assert all(list(item) == ["text", "embedding"] for item in found["outputs"])
    assert all(len(item["embedding"]) == 64 for item in found["outputs"])


def test_plan_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(["plan", str(places.llama), "--weights", "int8"], capsys)

    assert re.fullmatch(KEY, found["build_key"])
    assert all(set(field) == {"value", "by"} for field in found["fields"].values())
    assert found["fields"]["quantization.weights"] == {"value": "int8", "by": "user"}
    assert found["fields"]["shape.prefill_seq_len"]["by"] == "recipe:latency"
    assert found["fields"]["shape.ctx_len"] == {"value": 128, "by": "derived: 128 positions"}
    assert found["fields"]["target.name"] == {"value": "ort", "by": "default"}


def test_list_and_show_answer_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    recipes = {item["model_type"]: item for item in answer(["list"], capsys)}

    wanted = ["model_type", "architectures", "task", "tasks", "quant_methods"]
    assert all(list(item) == wanted for item in recipes.values())
    assert recipes["llama"]["architectures"][0] == "LlamaForCausalLM"
    assert recipes["llama"]["tasks"][:2] == ["text-generation", "text-classification"]
    shown = answer(["show", "llama"], capsys)
    assert {name: shown[name] for name in wanted} == recipes["llama"]
    assert shown["shapes"]["latency"]["ctx_len"] == 4096


def test_inspect_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(places.argv("inspect {package}"), capsys)
    assert found == {"path": str(places.package.path), "manifest": places.package.manifest}

    found = answer(places.argv("inspect {package} --verify"), capsys)
    assert (found["intact"], found["problems"]) == (True, [])

    weights = places.package.file("weights")
    overwrite(weights, b"\1" + weights.read_bytes()[1:])
    code, out, err = run(places.argv("inspect {package} --verify --json"), capsys)
    assert (code, err) == (1, "")
    assert json.loads(out)["intact"] is False
    assert "weights.safetensors" in json.loads(out)["problems"][0]


def test_cache_answers_in_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["cache", "ls", "--json"], capsys)
    entries = json.loads(out)
    assert (code, err) == (0, f"Store: {places.home}\n")
    assert sorted(entry["kind"] for entry in entries) == sorted(
        ["companions", "graph", "package"] * 2
    )
    assert all(list(entry) == ["kind", "key", "name", "path", "size", "state"] for entry in entries)
    assert {entry["name"] for entry in entries} == {"llama", "bert", None}

    assert answer(["cache", "verify"], capsys) == {
        entry["key"]: [] for entry in entries if entry["kind"] != "companions"
    }
    assert answer(["cache", "gc"], capsys) == []
    going = answer(["cache", "gc", "--older-than", "0", "--dry-run"], capsys)
    assert {entry["key"] for entry in going} == {entry["key"] for entry in entries}
    assert len(kept(places.home)) == 4
    gone = answer(["cache", "gc", "--older-than", "0"], capsys)
    assert [entry["key"] for entry in gone] == [entry["key"] for entry in going]
    assert kept(places.home) == []


def test_packages_are_removed_by_name(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    shared = places.folder / "shared"
    os.link(places.package.file("weights"), shared)  # as another package would
    argv = ["cache", "rm", places.package.build_key[4:12]]

    would, done = answer([*argv, "--dry-run"], capsys), answer(argv, capsys)

    assert would == done
    ((package,), freed) = done["packages"], done["bytes_freed"]
    assert package["key"] == places.package.build_key
    assert freed == package["size"] - shared.stat().st_size
    assert [entry.path for entry in kept(places.home, "package")] == [
        Path(places.argv("{encoder}")[0])
    ]


def test_a_name_of_several_packages_removes_none(
    places: Places, models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    models.build(models.llama, places.home, ctx_len=64)
    before = kept(places.home)
    for command_ in (["cache", "rm", "bert", "llama"], ["inspect", "llama"]):
        code, out, err = run(command_, capsys)
        assert (code, out) == (1, "")
        assert "'llama' names 2 packages. Expected one." in err
        assert re.search(
            rf"\n  llama ort-fp32-pl128-cl128-bs1 · {places.package.build_key[4:12]}\n", err
        )
    assert kept(places.home) == before


def test_a_damaged_package_is_removed_by_its_key(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    (places.package.path / "manifest.json").write_text("{")
    assert run(["cache", "rm", "llama"], capsys)[0] == 1
    key = places.package.build_key
    assert run(["cache", "rm", key[:12]], capsys)[1].splitlines()[2].split()[-1] == key[:12]
    assert not places.package.path.exists()


def test_doctor_answers_in_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(["doctor"], capsys)

    assert all(list(item) == ["name", "status", "detail", "advice"] for item in found)
    assert {item["status"] for item in found} <= {"ok", "missing", "warn"}
    assert not home.exists()  # it looks and does not touch


def test_new_answers_in_json(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(registry, "list_model_types", lambda: ["llama"])  # there is no OLMo 2 yet
    agrees = scaffold.Trial(passed=True, report="olmo2: agrees with Hugging Face (tiny)")
    monkeypatch.setattr(scaffold, "try_out", lambda file: agrees)
    config = {**CONFIG_MAPPING["olmo2"]().to_dict(), "architectures": ["Olmo2ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    argv = ["new", str(tmp_path / "config.json"), "-o", str(tmp_path / "recipes")]

    found = answer(argv, capsys)

    assert list(found) == ["path", "relative", "notes", "trial"]
    assert found["relative"] == "llama"
    assert found["trial"] == dataclasses.asdict(agrees)
    assert found["path"] == str(tmp_path / "recipes" / "olmo2.py")
    assert files_below(tmp_path / "recipes") == ["olmo2.py"]
    compile(Path(found["path"]).read_text(), found["path"], "exec")
    text = Path(found["path"]).read_text()
    code, out, err = run(argv, capsys)  # never over a recipe that is there
    assert (code, out) == (1, "")
    assert "Cannot write" in err
    assert Path(found["path"]).read_text() == text


def test_validate_answers_in_json_and_fails_with_1(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = []
    validate = validation.validate

    def remember(*arguments: Any, **options: Any) -> Any:
        records.append(validate(*arguments, **options))
        return records[-1]

    monkeypatch.setattr(validation, "validate", remember)
    monkeypatch.chdir(places.folder)
    found = answer(["validate", str(places.package.path), "--record"], capsys)

    assert found["passed"] is True
    assert found["level"] == "checkpoint"
    assert {check["stage"] for check in found["checks"]} >= {"prefill", "decode"}
    assert all({"metric", "value", "threshold", "passed"} <= {*check} for check in found["checks"])
    (record,) = (places.folder / "validated_models").rglob("*.json")
    assert Path(found["recorded"]).resolve() == record
    assert json.loads(record.read_text())["records"][0]["verdict"] == "validated"

    failed = dataclasses.replace(records[0], checks=[{**records[0].checks[0], "passed": False}])
    monkeypatch.setattr(validation, "validate", lambda *_, **__: failed)
    code, out, err = run(["validate", str(places.package.path), "--json"], capsys)
    assert (code, err) == (1, "")
    assert json.loads(out)["passed"] is False


def test_an_error_leaves_stdout_empty_even_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["show", "lama", "--json"], capsys)

    assert (code, out) == (1, "")
    assert err.count("\n") == 1


def test_ours_are_not_dressed_up_as_the_users_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the report goes
    monkeypatch.setattr(pipeline, "make_plan", fail)
    code, out, err = run(["plan", "org/name"], capsys)
    assert (code, out) == (1, "")
    assert err.startswith("qeff-zoo: Something went wrong that should not: AssertionError: a bug.")


def test_every_problem_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZooError("Two lines,\nof one error.")

    monkeypatch.setattr(pipeline, "make_plan", fail)
    assert run(["plan", "org/name"], capsys) == (1, "", "qeff-zoo: Two lines,\nof one error.\n")


# --- in a process of its own ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "template",
    [
        "--help", "--version", "list", "list --json", "show llama", "plan {llama}", "build --help", "inspect {package}",
        "inspect {package} --verify", "cache ls", "cache verify", "cache gc", "doctor",
        "build {llama} --no-validate",
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_light_commands_import_nothing_heavy(
    template: str, places: Places, probe: Callable[..., Probed]
) -> None:
    done = probe(*places.argv(template))

    assert (done.code or 0) == 0, done.stderr
    assert done.imported() == set()


def test_to_run_a_package_takes_neither_torch_nor_transformers(
    places: Places, probe: Callable[..., Probed]
) -> None:
    done = probe(*places.argv("run {package} --prompt fox --chat --generation-len 3 --json"))

    assert done.code == 0
    assert len(json.loads(done.stdout)["outputs"][0]["token_ids"]) == 3
    assert done.imported(("torch", "transformers", "onnx", "onnx_ir", "accelerate")) == set()


def test_as_a_module_and_as_a_script(places: Places) -> None:
    script = subprocess.run(
        [Path(sys.executable).with_name("qeff-zoo"), "plan", places.llama, "--json"],
        capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    module = command("plan", places.llama, "--json")

    assert module.stdout == script.stdout
    assert (module.returncode, module.stderr, script.stderr) == (0, "", "")


def test_exit_codes(places: Places) -> None:
    codes = [command("show", name).returncode for name in ("llama", "lama")]
    assert [*codes, command("shw").returncode] == [0, 1, 2]


def test_a_pipe_gets_the_answer_and_no_progress(places: Places) -> None:
    done = command("build", places.llama, "--no-validate", "--weights", "int4", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["hit"] is False


def test_a_terminal_shows_every_stage_on_stderr_alone(places: Places) -> None:
    argv = ["build", str(places.llama), "--no-validate", "--weights"]
    out, shown = on_terminal([*argv, "int4"])
    assert re.fullmatch(rf"{places.home}/packages/{KEY}\n", out)
    for stage in ("plan", "graph", "lower", "weights", "package"):
        assert re.search(rf"\r{stage} .*\d\d:\d\d", shown), shown
    assert re.search(r"weights +100% \|.*\| \d+k?/\d+k? .*B/s", shown)  # bytes and rate

    out, shown = on_terminal([*argv, "int8", "--quiet"])
    assert re.fullmatch(r"llama: built, validated: none \(\S+ s\)\r\n", shown)


def on_terminal(argv: list[str]) -> tuple[str, str]:
    """Run a command with a terminal for stderr; give stdout, and what the terminal showed."""
    ours, reference = pty.openpty()
    fcntl.ioctl(reference, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen(
        [warm.PYTHON.executable, "-m", "qeff_zoo", *argv],
        stdout=subprocess.PIPE, stderr=reference, text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(reference)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, shown
    return out, shown.decode()


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_is_no_news(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "qeff_zoo", "list", "--json"],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("package", "extra"), [("onnxruntime", "run"), ("fastapi", "serve"), ("torch", "build")]
)
def test_a_missing_extra_is_named(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setitem(cli._COMMANDS, "list", missing)
    assert cli.main(["list"]) == 1
    assert f"qeff-zoo[{extra}]" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_not_taken_for_an_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'qeff_zoo.gone'", name="qeff_zoo.gone")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the report goes
    monkeypatch.setitem(cli._COMMANDS, "list", missing)
    assert cli.main(["list"]) == 1
    assert (
        "should not: ModuleNotFoundError: No module named 'qeff_zoo.gone'"
        in capsys.readouterr().err
    )


def test_an_unknown_flag_has_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words, usage in (
        (["serve", "package", "--prot=1"], "qeff-zoo serve"),
        (["trust", "ls", "--josn"], "qeff-zoo trust ls"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
        printed_text = capsys.readouterr().err
        assert printed_text.startswith(f"usage: {usage} ")
        assert f"Did you mean {('--port' if 'serve' in words else '--json')!r}?" in printed_text


def test_a_log_gets_a_line_of_a_long_stage_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress_bars.time, "monotonic", lambda: now)
    shown = progress_bars.reporter()
    shown.begin("validate 2/2: reference", 4000, "token")
    for seconds, tokens in ((10, 500), (25, 500), (5, 100), (40, 2000)):
        now += seconds
        shown.advance(tokens)
    shown.end()
    shown.begin("graph", None, "B")
    now += 100
    shown.advance(1)
    shown.end()
    assert capsys.readouterr().err.splitlines() == [
        "validate 2/2: reference: 25%, 1.00k of 4.00k tokens, about 01:45 left",
        "validate 2/2: reference: 78%, 3.10k of 4.00k tokens, about 00:23 left",
    ]
    assert isinstance(progress_bars.reporter(quiet=True), Silent)
