# SPDX-License-Identifier: Apache-2.0
"""What several tests of cli and others use."""

import pytest

from qeff_zoo import cli


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command in this process; give its exit code, stdout and stderr."""
    capsys.readouterr()
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()
