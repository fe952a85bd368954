# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: folders prepared for an SDK's compiler, and their scripts, for tests that say which target and where.

A module that uses them has the fixtures `target`, the target's name, and `compiler_environment`, the variables by which
a script finds the stub of the compiler.
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fixtures_builds import Models

from qeff_zoo import pipeline
from qeff_zoo.package.prepared import SCRIPT
from qeff_zoo.plan.request import Request

Prepare: TypeAlias = Callable[..., Path]
Script: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def prepare(models: Models, home: Path, tmp_path: Path, target: str) -> Prepare:
    """Give a function that prepares a folder of the tiny Llama."""
    models.trace(models.llama, home)

    def run(name: str = "prepared", **choices: Any) -> Path:
        request = Request(target=target, ctx_len=64, prefill_seq_len=16, **choices)
        # What stands in for the lowered graph is not the checkpoint's.
        return pipeline.prepare(str(models.llama), tmp_path / name, request=request, validate=False)

    return run


@pytest.fixture
def script(compiler_environment: Mapping[str, str]) -> Script:
    """Give a function that runs the script of a folder with the stub."""

    def run(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [folder / SCRIPT],
            env={**os.environ, **compiler_environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
