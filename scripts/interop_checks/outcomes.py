# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: one line of JSON for each test, in the file that INTEROP_OUTCOMES names."""

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

_LENGTH = 400
_SECONDS = 180


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Stop a test that hangs."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def _stop(*_: object) -> None:
    raise TimeoutError(f"stopped after {_SECONDS} s")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test: of its call, or of a fixture that failed or skipped it."""
    if report.when != "call" and report.outcome == "passed":
        return
    if report.when == "teardown" and report.outcome == "failed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr or "")
    printed = report.capstdout[-_LENGTH:]  # llama.cpp's tests print the last answer of the server
    row = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "message": message[:_LENGTH],
        "printed": printed,
    }
    with Path(os.environ["INTEROP_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(row)}\n")
