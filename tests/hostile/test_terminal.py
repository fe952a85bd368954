# SPDX-License-Identifier: Apache-2.0
"""Names, messages and generated text cannot steer the terminal or turn what is read around; defects leave a report."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures_builds import TIMEOUT
from fixtures_cli import run
from package_builder import fill

from qeff_zoo import cli
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package
from qeff_zoo.qefficient.execution import execute
from qeff_zoo.terminal.sanitize import as_is, escaping, shown

EVIL = "evil\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp.exe\u2066\u200f\x7f\r"
HARMLESS = "tab\there\nand a family 👨‍👩‍👧, 中文, العربية, é, \u3000, \ufeff"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return fill(tmp_path / "package", name=EVIL, license=EVIL)


def steers(text: str) -> bool:
    return any(mark in text for mark in "\x1b\x07\x9b\u202e\u2066\u200f\x7f\r")


def test_only_what_steers_is_escaped() -> None:
    assert shown(HARMLESS) == HARMLESS
    assert shown(EVIL) == (
        r"evil\u001b[2J\u001b]0;title\u0007\u009b31m\u202egnp.exe\u2066\u200f\u007f\u000d"
    )
    assert shown("half \ud83d, from a byte \udcff") == r"half \ud83d, from a byte \udcff"
    assert shown(shown(EVIL)) == shown(EVIL)


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--json"], ["serve-args"]])
def test_what_commands_print(
    package: Package, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, err = run([*arguments, str(package.path)], capsys)
    assert "evil" in out + err or arguments == ["serve-args"]
    assert not steers(out + err)
    if "--json" in arguments:
        assert json.loads(out)["manifest"]["name"] == EVIL


def test_messages_of_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["inspect", str(tmp_path / EVIL[:-1])], capsys)
    assert (code, out) == (1, "")
    assert "evil" in err
    assert not steers(err)


@pytest.mark.parametrize(
    ("terminal", "expected"), [(False, EVIL + HARMLESS), (True, shown(EVIL) + HARMLESS)]
)
def test_generated_text_is_escaped_on_a_terminal_alone(
    terminal: bool, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qeff_zoo.terminal.printing import print_generated

    with (tmp_path / "out").open("w+", newline="") as stream:
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", escaping(stream))
        print_generated(EVIL + HARMLESS, end="")
        stream.seek(0)
        assert stream.read() == expected


def test_progress_bars_may_steer() -> None:
    assert as_is(escaping(escaping(sys.stdout))) is sys.stdout
    assert as_is(sys.stdout) is sys.stdout


def test_on_a_real_terminal(package: Package) -> None:
    parent, child = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "qeff_zoo", "inspect", str(package.path)],
        stdout=child,
        stderr=child,
        timeout=TIMEOUT,
        check=True,
    )
    os.close(child)
    text = os.read(parent, 1 << 16).decode().replace("\r\n", "\n")
    os.close(parent)
    assert done.returncode == 0
    assert "evil" in text
    assert not steers(text)


# --- defects --------------------------------------------------------------------------------------


def fails(error: BaseException) -> Callable[..., None]:
    def act(*_: Any) -> None:
        raise error

    return act


def recurse(*_: Any) -> None:
    recurse()


@pytest.fixture
def report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Give a function that runs `list` with a defect, and returns what it said and wrote down."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def caught(act: Callable[..., None], *arguments: str) -> tuple[str, str]:
        monkeypatch.setitem(cli._COMMANDS, arguments[0], act)
        code, out, err = run([*arguments], capsys)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert not steers(err)
        (path,) = re.findall(r"The report is in '(.*?)'", err)
        assert Path(path).stat().st_mode & 0o077 == 0
        return err, Path(path).read_text()

    return caught


@pytest.mark.parametrize(
    ("act", "happened"),
    [
        (fails(KeyError("x")), "KeyError: 'x'"),
        (fails(RuntimeError(f"{EVIL}\nand more")), "RuntimeError: evil"),
        (fails(ModuleNotFoundError("No module named 'nobody'", name="nobody")), "'nobody'"),
        (recurse, "RecursionError: maximum recursion depth"),
    ],
    ids=["key", "runtime", "module", "recursion"],
)
def test_a_defect_is_one_line_and_a_report(
    report: Callable[..., tuple[str, str]], act: Callable[..., None], happened: str
) -> None:
    message, written = report(act, "list", "--models")
    assert message.startswith("qeff-zoo: Something went wrong that should not: ")
    assert happened in message
    assert "Traceback" in written
    assert "$ qeff-zoo list --models\n" in written
    assert re.search(r"qeff-zoo \S+, Python 3\.", written)
    assert re.search(r"onnxruntime \d", written)
    assert not steers(written)


def test_a_report_has_no_secrets(
    report: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("hf_abcdefgh1234", "pa55w0rd", "sig-0123", "k3y-0f-the-h0use", "0ther-t0ken")
    token, password, signature, key, other = secrets
    monkeypatch.setenv("HF_TOKEN", other)
    url = f"https://me:{password}@host/path?X-Signature={signature}"
    message = f"{url} refused {token}, {other}, Authorization: Bearer {key}"
    expected_message, written = report(fails(ValueError(message)), "serve", url, "--api-key", key)
    for secret in secrets:
        assert secret not in expected_message + written
    assert "https://***@host/path?X-Signature=***" in written
    assert "--api-key '***'" in written


def test_without_room_for_a_report_the_line_still_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    monkeypatch.setitem(cli._COMMANDS, "list", fails(KeyError("x")))
    code, out, err = run(["list"], capsys)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"qeff-zoo: Something went .*: KeyError: 'x'. No report .*\n", err)


def test_what_users_can_mend_leaves_no_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(cli._COMMANDS, "list", fails(PackageError("Damaged.")))
    assert run(["list"], capsys) == (1, "", "qeff-zoo: Damaged.\n")
    assert list(tmp_path.iterdir()) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "written"), [(_Terminal, "a\\u001b[2Jb"), (io.StringIO, "a\x1b[2Jb")]
)
def test_what_a_model_writes_steers_no_terminal_from_python(
    stream: type[io.StringIO], written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        decoder = SimpleNamespace(sizes=SimpleNamespace(rows=1))
        metrics = SimpleNamespace(
            total_s=1.0, generated_tokens=1, ttft_s=1.0, decode_tokens_per_s=1.0
        )

        def generate(self, prompts: list[str], **choices: Any) -> list[Any]:
            choices["stream"](0, "a\x1b[2Jb")
            return [SimpleNamespace(text="", token_ids=[])]

    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    execute(Session(), "hi")
    assert out.getvalue() == f"Prompt: hi\nCompletion: {written}\n"
