# SPDX-License-Identifier: Apache-2.0
"""Tests that run in forked processes are reported as they are in one."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkout import HELPERS

TESTS = """
import os, signal, time
import pytest

@pytest.fixture(scope="module")
def process():
    yield os.getpid()
    with open("torn-down", "a") as file:
        file.write("x")

@pytest.mark.parametrize("number", range(8))
def test_passes(number, process, capsys):
    print("number", number)
    assert capsys.readouterr().out == f"number {number}\\n"

def test_fails():
    print("what it printed")
    assert [1, 2] == [1, 3]

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_ends():
    os._exit(3)

@pytest.mark.skip(reason="another time")
def test_is_skipped(): ...

@pytest.mark.xfail
def test_is_wrong():
    assert False

def test_errs(missing): ...

def test_is_last(): ...
"""
SLOW = """
import time
import pytest

@pytest.fixture
def made():
    with open("begun", "a") as file:
        file.write("x")
    yield
    with open("torn-down", "a") as file:
        file.write("x")

@pytest.mark.parametrize("number", range(4))
def test_sleeps(number, made):
    time.sleep(60)
"""


def start(folder: Path, tests: str, *options: str) -> subprocess.Popen[str]:
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]")
    there = str(HELPERS)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "forks", *options],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": there, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


@pytest.mark.parametrize("count", [1, 3])
def test_every_test_is_reported_once_whatever_ends_its_process(count: int, tmp_path: Path) -> None:
    run = start(tmp_path, TESTS, "--forks", str(count), "-rA")
    out, _ = run.communicate()
    assert run.returncode == 1
    assert "3 failed, 9 passed, 1 skipped, 1 xfailed, 1 error" in out
    for reason in ("SIGKILL", "3"):
        assert f"Its process ended with {reason}" in out
    assert "At index 1 diff: 2 != 3" in out
    assert "what it printed" in out
    assert "fixture 'missing' not found" in out
    named = re.findall(r"^(?:PASSED|FAILED|ERROR|XFAIL) \S+::(\S+)", out, re.MULTILINE)
    assert len(named) == len({*named}) == 14


def test_option_x_ends_a_run_at_the_first_failure(tmp_path: Path) -> None:
    run = start(tmp_path, TESTS, "--forks", "1", "-x")
    out, _ = run.communicate()
    assert "1 failed, 8 passed" in out
    assert (tmp_path / "torn-down").read_text() == "x"


def test_an_interrupted_run_tears_down_what_its_processes_made(tmp_path: Path) -> None:
    run = start(tmp_path, SLOW, "--forks", "2")
    begun = tmp_path / "begun"
    while run.poll() is None and not (begun.exists() and begun.stat().st_size == 2):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in out
    assert (tmp_path / "torn-down").read_text() == "xx"
