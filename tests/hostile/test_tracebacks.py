# SPDX-License-Identifier: Apache-2.0
"""What somebody else made wrong is said in a sentence that names it, never by a traceback."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures_builds import Models
from fixtures_cli import run
from package_builder import SOURCE, SPEC, draft

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.errors import CheckpointError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import problems
from qeff_zoo.sessions import open_session

# --- manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sources": "org/tiny"}, "$.spec.sources 'org/tiny' is not of type 'object'"),
        ({"sources": {"model": "org/tiny"}}, "$.spec.sources.model 'org/tiny' is not of type"),
        ({"sources": {"model": {**SOURCE, "model_id": 1}}}, "$.spec.sources.model.model_id 1 is"),
        ({"toolchain": "torch 2.13.0"}, "$.spec.toolchain 'torch 2.13.0' is not of type 'object'"),
        ({"toolchain": {"torch": {}}}, "$.spec.toolchain.torch {} is not of type 'string'"),
        ({"shape": {"ctx_len": "4096"}}, "$.spec.shape.ctx_len '4096' is not of type"),
        ({"target": "ort"}, "$.spec.target 'ort' is not of type 'object'"),
        ({"task": {"name": "x" * 241}}, "$.spec.task.name 'xxx"),
    ],
)
def test_a_spec_of_another_form_is_refused(change: dict[str, Any], problem: str) -> None:
    spec = {**copy.deepcopy(SPEC), **change}
    found = problems(draft(spec=spec))
    assert [text for text in found if text.startswith(problem)], found


@pytest.mark.parametrize(
    ("path", "longest"), [("a" * 256, 256), ("qpc/" + "ł" * 128, 256), ("ツ" * 86 + "/a", 258)]
)
def test_a_name_longer_than_any_file_system_takes_is_refused(path: str, longest: int) -> None:
    assert unsafe_path(path) == f"has a part of {longest} bytes, more than 255"
    assert unsafe_path("/".join(["ł" * 127, "a" * 255])) is None


# --- files of a package ---------------------------------------------------------------------------


@pytest.fixture
def package(models: Models, home: Path, tmp_path: Path) -> Package:
    """Give a package that runs, outside of the store and as somebody sent it."""
    built = models.build(models.llama, home)
    return Package.open(models.copy(built.path, tmp_path / "sent"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 1, b"com.microsoft", b"position_ids", -1])
def test_a_damaged_graph(
    package: Package, at: int | bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    path = package.path / "graph.onnx"
    flip(path, path.read_bytes().index(at) if isinstance(at, bytes) else at)
    with pytest.raises(
        PackageError, match=r"ONNX Runtime \S+ cannot open '.*graph\.onnx'.* is damaged"
    ):
        open_session(package)
    assert capfd.readouterr() == ("", "")


def test_a_graph_of_another_package(package: Package, models: Models, home: Path) -> None:
    other = models.build(models.bert, home)
    (package.path / "graph.onnx").write_bytes((other.path / "graph.onnx").read_bytes())
    for name in ("weights.safetensors", "config.json"):
        (package.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(PackageError, match="its files do not fit its manifest, or each other"):
        open_session(package)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
        (
            "tokenizer.json",
            b'{"version": "1.0", "model": {"type": "BPE", "vocab": [], "merges": 1}}',
        ),
        ("tokenizer_config.json", b"["),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("generation_config.json", b"\xff"),
        ("generation_config.json", b'{"eos_token_id": {"a": 1}}'),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_damaged_tokenizer_or_config(package: Package, name: str, content: bytes) -> None:
    (package.path / name).write_bytes(content)
    with pytest.raises(PackageError, match=r"Expected .* Build or pull"):
        open_session(package)


def test_a_tokenizer_with_too_few_words(package: Package) -> None:
    path = package.path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "?"}
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "model": model}))
    with pytest.raises(PackageError, match=r"Cannot read '.*tokenizer\.json'"):
        qeff_zoo.load(package).encode("c")


# --- names and places -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("QEFF_ZOO_CONFIG", ["resolve", "org/name"]),
        ("QEFF_ZOO_RECIPES", ["list"]),
        ("QEFF_HOME", ["cache", "ls"]),
    ],
)
def test_a_folder_without_an_owner(
    variable: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(variable, "~nosuchuser/x")
    code, out, err = run(arguments, capsys)
    assert (code, out) == (1, "")
    assert err == (
        f"qeff-zoo: Cannot read the settings of '{variable}': '~nosuchuser/x' has no home folder; expected a path. "
        "Correct it.\n"
    )


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "ł" * 200])
@pytest.mark.parametrize("command", ["inspect", "plan", "build", "run"])
def test_names_longer_than_any_file_s(
    command: str, name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([command, name, *(["--prompt", "x"] if command == "run" else [])], capsys)
    assert (code, out) == (1, "")
    assert "should not" not in err


@pytest.mark.parametrize("name", ["NOTICE\x1b[2J", "LICENSE\n", "NOTICE\u202e", "LICENSE\\x"])
def test_a_checkpoint_whose_files_cannot_be_in_a_package(
    name: str, models: Models, tmp_path: Path
) -> None:
    folder = models.copy(models.llama, tmp_path / "odd")
    (folder / name).write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot be in a package: its name holds a"):
        open_checkpoint(str(folder))


def test_a_copy_with_a_name_that_no_folder_can_have(
    models: Models, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is said before anything is built."""
    output = tmp_path / ("x" * 300)
    code, out, err = run(["build", str(models.llama), "-o", str(output)], capsys)
    assert (code, out) == (1, "")
    assert err.startswith("qeff-zoo: Cannot copy a package to ")
    assert "File name too long" in err
