# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from qeff_zoo.cli import doctor
from qeff_zoo.cli.doctor import examine
from qeff_zoo.targets.base import Finding
from qeff_zoo.targets.qaic import sdk

pytestmark = pytest.mark.turns(2)

NAMES = [
    *("python", "qeff-zoo", "core packages", "extra run", "extra build", "processor", "memory"),
    *("store", "hub", "hub token", "OpenVINO", "QNN"),
    *("Cloud AI apps SDK", "Cloud AI platform SDK", "QNN SDK"),
]
SECRET = "hf_thisIsNoToken"
XML = "<versions><ci_build><base_version>1.21.2</base_version><build_id>0</build_id></ci_build></versions>"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without settings, whose description lies in a folder."""
    for name in (
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "QNN_SDK_ROOT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "store" / "deep"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(sdk, "SDK", tmp_path / "qti-aic")
    describe(tmp_path, flags="fpu avx2 avx512f avx512_vnni", free=8_000_000)
    return tmp_path


def describe(folder: Path, *, flags: str, free: int) -> None:
    (folder / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n")
    (folder / "meminfo").write_text(f"MemTotal:       16000000 kB\nMemAvailable:   {free} kB\n")


def found(machine: Path, name: str) -> Finding:
    findings = examine(proc=machine)
    return {finding.name: finding for finding in findings}[name]


def test_everything_is_looked_at(machine: Path) -> None:
    names = [finding.name for finding in examine(proc=machine)]
    assert [name for name in names if name in NAMES] == NAMES
    assert len(names) == len(set(names))


def test_nothing_is_written(machine: Path) -> None:
    before = sorted(machine.rglob("*"))
    examine(proc=machine)
    assert sorted(machine.rglob("*")) == before


def test_a_machine_without_descriptions(tmp_path: Path) -> None:
    assert found(tmp_path / "nowhere", "processor").status == "ok"
    assert found(tmp_path / "nowhere", "memory").detail == "unknown on this system"


def test_processor(machine: Path) -> None:
    assert found(machine, "processor").status == "ok"
    assert found(machine, "processor").detail.endswith("cores, avx2 avx512f avx512_vnni")
    describe(machine, flags="fpu avx2", free=1)
    assert found(machine, "processor").status == "ok"
    assert "without VNNI and AMX" in found(machine, "processor").detail
    describe(machine, flags="fpu sse4_2", free=1)
    assert found(machine, "processor").status == "warn"
    assert "avx2" in found(machine, "processor").advice


def test_memory(machine: Path) -> None:
    assert found(machine, "memory") == Finding(
        name="memory", status="ok", detail="8.2 of 16.4 GB free"
    )
    describe(machine, flags="avx2", free=1_000_000)
    assert found(machine, "memory").status == "warn"


def test_packages(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(package: str) -> str:
        if package in ("torch", "accelerate"):
            raise metadata.PackageNotFoundError(package)
        return "9.0" if package == "numpy" else real(package)

    monkeypatch.setattr(doctor, "version", version)
    build, run = found(machine, "extra build"), found(machine, "extra run")
    assert build.status == "missing"
    assert build.detail == "without torch, accelerate"
    assert (
        build.advice == "Run `pip install 'qeff-zoo[build]'` for building and validating packages."
    )
    assert run.status == "warn"
    assert run.detail.startswith("numpy 9.0 (expected ")
    assert found(machine, "core packages").status == "ok"


def test_python(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine, "python").status == "ok"
    monkeypatch.setattr("platform.python_version", lambda: "3.8.10")
    assert found(machine, "python").status == "warn"
    assert ">=3.11" in found(machine, "python").advice


def test_store(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = found(machine, "store")
    assert store.status == "ok"
    assert store.detail.startswith(str(machine / "store" / "deep"))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert found(machine, "store").status == "warn"
    assert "cannot be written" in found(machine, "store").detail
    monkeypatch.undo()
    monkeypatch.setenv("QEFF_HOME", str(machine / "cpuinfo" / "store"))  # below a file
    assert found(machine, "store").advice == "Set QEFF_HOME to a folder that you may write."


@pytest.mark.parametrize(
    ("endpoint", "offline", "status", "detail"),
    [
        (None, None, "ok", "https://huggingface.co"),
        ("https://me:password@hub.example/x", None, "ok", "https://hub.example/x"),
        ("hub.example", None, "warn", "HF_ENDPOINT is not a URL"),
        ("https://[", None, "warn", "HF_ENDPOINT is not a URL"),
        (None, "1", "warn", "https://huggingface.co, but offline (HF_HUB_OFFLINE)"),
        (None, "0", "ok", "https://huggingface.co"),
    ],
)
def test_hub(
    endpoint: str | None,
    offline: str | None,
    status: str,
    detail: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("HF_ENDPOINT", endpoint), ("HF_HUB_OFFLINE", offline)):
        if value is not None:
            monkeypatch.setenv(name, value)
    hub = found(machine, "hub")
    assert (hub.status, hub.detail) == (status, detail)


def test_the_setting_of_ours_is_offline_too(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    hub = found(machine, "hub")
    assert (hub.status, hub.detail) == (
        "warn",
        "https://huggingface.co, but offline (QEFF_ZOO_OFFLINE)",
    )
    assert "Unset QEFF_ZOO_OFFLINE" in hub.advice


def test_a_token_is_never_shown(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine, "hub token").status == "missing"
    (machine / "hf").mkdir()
    (machine / "hf" / "token").write_text(SECRET)
    assert found(machine, "hub token").detail == f"in {machine / 'hf' / 'token'}"
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert found(machine, "hub token").detail == "in HF_TOKEN"
    monkeypatch.setenv("HF_TOKEN", " \n")
    assert found(machine, "hub token").detail == f"in {machine / 'hf' / 'token'}"
    (machine / "hf" / "token").write_text(" \n")
    assert found(machine, "hub token").status == "missing"
    assert SECRET not in repr(examine(proc=machine))


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        (XML, "ok", "1.21.2.0"),
        ("<sdk><apps_version>1.20</apps_version></sdk>", "ok", "1.20"),
        ("<sdk/>", "warn", "names no version"),
        ("<sdk", "warn", "unclosed token"),
        (None, "missing", "apps.xml"),
    ],
)
def test_sdk(text: str | None, status: str, detail: str, machine: Path) -> None:
    versions = machine / "qti-aic" / "versions"
    versions.mkdir(parents=True)
    if text is not None:
        (versions / "apps.xml").write_text(text)
    apps = found(machine, "Cloud AI apps SDK")
    assert apps.status == status
    assert detail in apps.detail
    assert bool(apps.advice) == (status != "ok")


def test_qnn_sdk(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = found(machine, "QNN SDK")
    assert (absent.status, absent.detail) == ("missing", "QNN_SDK_ROOT is not set")
    assert "QNN_SDK_ROOT" in absent.advice
    root = machine / "qnn"
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    assert found(machine, "QNN SDK").status == "warn"
    tools = root / "bin" / "x86_64-linux-clang"
    tools.mkdir(parents=True)
    for name in ("qairt-converter", "qnn-context-binary-generator"):
        (tools / name).touch(0o755)
    (root / "sdk.yaml").write_text("version: 2.40.0\n")
    there = found(machine, "QNN SDK")
    assert (there.status, there.detail, there.advice) == ("ok", f"{root}, version 2.40.0", "")


def test_imports_are_light() -> None:
    heavy = ("torch", "transformers", "numpy", "onnx", "onnxruntime", "huggingface_hub")
    examined = "import sys; from qeff_zoo.cli.doctor import examine; examine()"
    code = f"{examined}; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
