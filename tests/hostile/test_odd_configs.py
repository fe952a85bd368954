# SPDX-License-Identifier: Apache-2.0
"""Values that no config has, files that are garbage, names, folders and memory that do not do: one error, no report."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from fixtures_builds import Models
from sentence_models import dense, pooling, save

from qeff_zoo import cli
from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, OutOfMemoryError, PlanError, TrainingError
from qeff_zoo.export.loader import build_meta
from qeff_zoo.finetuning.models import read_tokenizer
from qeff_zoo.qefficient.sdks import operators_of
from qeff_zoo.terminal.progress import Silent, Stopwatch
from qeff_zoo.validation.reference.answers import _no_reference

EXAMPLES = ROOT / "examples"
ODD: dict[str, Any] = {
    "num_attention_heads": 0, "num_key_value_heads": 0, "hidden_size": 0, "vocab_size": 0, "head_dim": 0,
    "hidden_act": "nonsense", "text_config": {"hidden_act": "silu"}, "rms_norm_eps": "x", "layer_types": ["x"],
    "tie_word_embeddings": "x", "attention_bias": 7, "dtype": "nonsense",
}  # fmt: skip
ODD_HEADS = {"num_attention_heads": [-1, "4", 2.5, None], "head_dim": [-8, 7]}
ODD_ROPE = [
    {"rope_type": "nonsense", "factor": 2.0},
    {"rope_type": "linear"},
    {"rope_type": "linear", "factor": "x"},
]


def refusal(models: Models, folder: Path, **changes: Any) -> str:
    """Give what is said of a config with these changes, by the first that looks at it."""
    config = json.loads((models.llama / "config.json").read_text()) | changes
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as refused:
        build_meta(read_config(path), "text-generation")
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [*ODD.items(), *((name, value) for name, values in ODD_HEADS.items() for value in values)],
)
def test_an_error_names_the_field(name: str, value: Any, models: Models, tmp_path: Path) -> None:
    message = refusal(models, tmp_path, **{name: value})
    assert name in message or f"`{name}`" in message or (name == "dtype" and "nonsense" in message)
    assert "Expected" in message
    assert "orrect it" in message


@pytest.mark.parametrize("rope", ODD_ROPE, ids=lambda rope: "-".join(map(str, rope.values())))
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_so_it_does_of_a_rotary_embedding(
    name: str, rope: dict[str, Any], models: Models, tmp_path: Path
) -> None:
    config = json.loads((models.llama / "config.json").read_text())
    others = {"rope_scaling", "rope_parameters"} - {name}
    message = refusal(models, tmp_path, **{name: rope}, **dict.fromkeys(others & config.keys()))
    assert "factor" in message or "rope_type is 'nonsense'" in message


@pytest.mark.parametrize("name", ["num_attention_heads", "hidden_act", "rms_norm_eps"])
def test_a_build_reports_it_before_a_tokenizer_error(
    name: str, models: Models, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = models.copy(models.llama, tmp_path / "odd")
    config = json.loads((checkpoint / "config.json").read_text()) | {name: "nonsense"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    assert cli.main(["build", str(checkpoint), "--no-validate", "-q"]) == 1
    printed_text = capsys.readouterr().err
    assert "transformers does not accept this config" in printed_text
    assert name in printed_text


# --- garbage, names and folders ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nests values 51 deep in line 1"),
        ("a: " + "{b: " * 50_000, "nests values 51 deep in line 1"),
        ("\x00", "Expected a YAML file"),
        ("&a [*a", "has the alias '*a' in line 1"),
    ],
)
def test_yaml_is_refused(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(content)
    assert cli.main(["finetune", str(tmp_path / "run.yaml")]) == 1
    assert message in capsys.readouterr().err
    message = message.replace("Expected a YAML file", "expected QEfficient's YAML file")
    with pytest.raises(PlanError, match=re.escape(message).replace("expected", "[Ee]xpected")):
        operators_of(str(tmp_path / "run.yaml"))


NOT_AN_OBJECT = {
    "depth": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "cut": b"{",
    "text": b'"a"',
}


@pytest.mark.parametrize("kind", NOT_AN_OBJECT)
def test_any_json_file_of_a_checkpoint_is_refused(
    kind: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a vision-language model, and of an embedding model with modules."""
    save(tmp_path / "embedding", pooling(), dense(24))
    shutil.copytree(EXAMPLES / "tiny-vlm", tmp_path / "vision")
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) >= 10
    for path in files:
        content = path.read_bytes()
        path.write_bytes(NOT_AN_OBJECT[kind])
        code = cli.main(["plan", str(tmp_path / path.relative_to(tmp_path).parts[0])])
        printed = capsys.readouterr().err
        assert "Something went wrong that should not" not in printed, path
        assert code == 0 or f"{path.name}" in printed, (path, printed)
        path.write_bytes(content)


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "package", "--config={file}"],
        ["serve", "package", "--default-chat-template-kwargs={text}"],
        ["farm", "{file}"],
    ],
)
def test_depth_of_what_a_user_gives(
    argv: list[str], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.toml").write_text("x = " + "[" * 100_000)
    words = {"{file}": str(tmp_path / "deep.toml"), "{text}": "[" * 100_000}
    given = [one.replace(mark, words[mark]) for one in argv for mark in words if mark in one]
    plain = [one for one in argv if "{" not in one]
    try:
        code = cli.main([*plain, *given])
    except SystemExit as usage:
        code = usage.code  # type: ignore[assignment]
    assert code in (1, 2)
    assert "Something went wrong that should not" not in capsys.readouterr().err


GARBAGE = {
    "tokenizer.model": b"\x0a\xff\xff\xff\xff\x0f",
    "vocab.json": b"{",
    "merges.txt": b"\xff",
    "tiktoken.model": b"!",
}


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_garbage_for_a_tokenizer(kind: str, models: Models, home: Path, tmp_path: Path) -> None:
    from qeff_zoo.checkpoint import text
    from qeff_zoo.finetuning.config import Config

    folder = models.copy(models.llama, tmp_path / "odd")
    (folder / "tokenizer.json").unlink()
    for name, content in GARBAGE.items():
        (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(
        CheckpointError, match="transformers makes no tokenizer of the files of 'odd'"
    ):
        text.load(folder, "odd")
    config = object.__new__(Config)
    object.__setattr__(config, "tokenizer_name", str(folder))
    with pytest.raises(TrainingError, match="Cannot read a tokenizer in"):
        read_tokenizer(config, open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    "argv",
    [
        ["pull", "X"], ["resolve", "X"], ["plan", "X"], ["lock", "X"], ["validate", "X"], ["inspect", "X"],
        ["publish", "X", "file:///tmp/zoo"], ["bundle", "export", "X", "-o", "b.tar"], ["bundle", "import", "X"],
        ["run", "X", "--prompt", "a"], ["quantize", "X", "-o", "out"], ["finetune", "X"], ["adopt", "X", "X"],
        ["cache", "rm", "X"], ["repair", "X"], ["ls", "X"], ["export", "X", "-o", "out"],
    ],
    ids=lambda argv: "-".join(argv[:2]),
)  # fmt: skip
def test_a_name_of_five_thousand_characters(
    argv: list[str], home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    try:
        code = cli.main([word.replace("X", "x" * 5000) for word in argv])
    except SystemExit as stop:
        code = int(stop.code or 0)
    printed_text = capsys.readouterr().err
    assert code in (1, 2, 10, 20)
    assert "Something went wrong that should not" not in printed_text
    assert "qeff-zoo: " in printed_text or code in (2, 20)


# --- what a machine refuses -------------------------------------------------------------------------


@pytest.mark.parametrize("code", [13, 28, 30, 36, 122])
def test_what_a_disk_refuses_is_no_defect(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise OSError(code, os.strerror(code), "/somewhere")

    assert cli.guarded(work, ["x"]) == 1
    printed_text = capsys.readouterr().err
    assert printed_text.startswith(
        f"qeff-zoo: Cannot use the file or folder '/somewhere': {os.strerror(code)}."
    )


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="needs root, without what lets it in anywhere",
)
def test_a_working_folder_that_one_may_not_enter(tmp_path: Path) -> None:
    """It hides no model: `org/model` is then no folder."""
    folder = tmp_path / "shut"
    folder.mkdir(0o700)
    shut, caps = folder / "in", "-dac_override,-dac_read_search"
    shut.mkdir()
    os.chown(folder, 65534, 65534)
    alone = ["setpriv", f"--inh-caps={caps}", f"--bounding-set={caps}"]
    argv = [sys.executable, "-m", "qeff_zoo", "resolve", "org/model"]
    done = subprocess.run(
        [*alone, *argv],
        cwd=shut,
        env={**os.environ, "QEFF_ZOO_OFFLINE": "1", "QEFF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Something went wrong" not in done.stderr, done.stderr
    assert "org/model" in done.stdout + done.stderr


SHORT = [
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3000000000 bytes. Error code 12"),
    Exception("RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 3000000000"),
    OSError(12, "Cannot allocate memory"),
]  # fmt: skip


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_lack_of_memory_is_reported_with_the_stage(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(
            OutOfMemoryError, match=r"Out of memory in the stage 'weights', which needs"
        ) as caught,
        Stopwatch(Silent()).stage("weights"),
    ):
        raise error
    needed = float(re.findall(r"needs (?:about|more than) ([\d.]+) GB", str(caught.value))[0])
    assert needed > (3.0 if "3000000000" in str(error) else 0.0)

    def work() -> int:
        raise error

    assert cli.guarded(work, ["serve"]) == 1
    assert "Out of memory in `qeff-zoo serve`" in capsys.readouterr().err


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), Stopwatch(Silent()).stage("weights"):
        raise KeyError("memory")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-9, "its process was killed, as the kernel does where memory runs out."),
        (137, "its process was killed, as the kernel does where memory runs out."),
        (-6, "its process ended with SIGABRT."),
        (1, "ValueError: x"),
    ],
)
def test_a_killed_validation_process_is_reported(code: int, expected: str) -> None:
    """Whatever it had written before, such as how far it had come."""
    refused = _no_reference(
        {"checkpoint": "org/model"}, "Loading weights: 50%\nValueError: x\n", code
    )
    assert f"The reference for 'org/model' does not run: {expected} Expected" in str(refused)
    assert "4 bytes for each parameter" in str(refused)
