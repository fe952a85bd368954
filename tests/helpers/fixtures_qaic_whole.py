# SPDX-License-Identifier: Apache-2.0
"""What several tests of qaic whole and others use."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import runnable_package
import torch
from fixtures_qaic_build import compiler

from qeff_zoo import pipeline
from qeff_zoo.package.prepared import PREPARED, PROGRAM, SCRIPT
from qeff_zoo.plan.request import Request
from qeff_zoo.targets.qaic import sdk


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def prepare(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Path, Path]]:
    """Give a function that makes a checkpoint, and prepares a folder of it."""
    monkeypatch.setenv("QEFF_HOME", str(home))

    def run(model_type: str, **choices: Any) -> tuple[Path, Path]:
        source = home / model_type
        if not source.exists():
            runnable_package.checkpoint(source, model_type)
        request = Request(target="qaic", **choices)
        return source, pipeline.prepare(str(source), tmp_path / "prepared", request=request)

    return run


def compiled(folder: Path, tmp_path: Path) -> Path:
    """Run the script of a prepared folder with the stub."""
    stub = compiler(tmp_path / "sdk")
    environment = {**os.environ, sdk.COMPILER_VARIABLE: str(stub)}
    done = subprocess.run(
        [folder / SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for path in (folder / "qpc").rglob(PROGRAM):
        assert path.read_bytes().startswith(b"NO QPC\n")
    return folder / "qpc"


def emulated(folder: Path) -> Mapping[str, Any]:
    """Return what a prepared folder says of the package, which agrees with Hugging Face in a card's numerics."""
    manifest: Mapping[str, Any] = json.loads((folder / PREPARED).read_bytes())["manifest"]
    assert manifest["validated"] == "emulated"
    assert {check["level"] for check in manifest["validation"]} == {"emulated"}
    assert all(check["passed"] for check in manifest["validation"])
    return manifest


def hugging_face(model: Any, text: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([text]), use_cache=False).logits[0].float().numpy()
