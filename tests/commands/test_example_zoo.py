# SPDX-License-Identifier: Apache-2.0
"""The zoo to copy: the commands of its README and the steps of its workflow, in a shell."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checkout import ROOT

from qeff_zoo.farm import zoo_file

pytest.importorskip("ray")
EXAMPLES = ROOT / "examples"
WORKFLOW = ".github/workflows/zoo.yml"
TIMEOUT = 600  # seconds; a command that takes longer hangs


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Give a copy of the zoo, and of the model beside it."""
    shutil.copytree(EXAMPLES / "tiny-llama", tmp_path / "tiny-llama")
    return shutil.copytree(EXAMPLES / "zoo", tmp_path / "zoo")


def shell(zoo: Path, command: str) -> str:
    """Run a command of the zoo; give its output."""
    (zoo / "bin").mkdir(exist_ok=True)
    script = zoo / "bin" / "qeff-zoo"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m qeff_zoo "$@"\n')
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{zoo / 'bin'}:{os.environ['PATH']}",
        "QEFF_HOME": str(zoo / "home"),
        "GIT_DIR": str(zoo / "none"),  # whatever is uncommitted here
    }
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=zoo, env=environment, capture_output=True, text=True,
        timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.together("farm")
def test_its_commands_build_and_publish_its_packages(zoo: Path) -> None:
    readme = (zoo / "README.md").read_text()
    (commands,) = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    plan, run, status, listed = re.findall(r"^\$ (.*)", commands, re.MULTILINE)
    steps = {
        step["name"]: step["run"]
        for step in yaml.safe_load((zoo / WORKFLOW).read_text())["jobs"]["zoo"]["steps"]
        if "run" in step
    }
    assert [steps["Plan"], steps["Status"]] == [plan, status]
    assert steps["Build"] == f"{run} --json > report.json"

    assert "1 missing" in shell(zoo, plan)
    shell(zoo, steps["Build"])
    report = json.loads((zoo / "report.json").read_bytes())
    assert report["states"] == {"published": 1}
    assert "1 published" in shell(zoo, status)
    assert "tiny-llama" in shell(zoo, listed)
    shell(zoo, steps["Site"])
    assert (zoo / "site" / "local" / "tiny-llama.html").is_file()
    assert "1 published" in shell(zoo, steps["Validate stale evidence"])  # nothing is stale


def test_its_zoo_file_is_read(zoo: Path) -> None:
    found = zoo_file.read(zoo / "zoo.toml")

    assert found.remote == f"file://{zoo / 'packages'}"
    assert [one.source.name for one in found.wanted] == ["tiny-llama"]
