# SPDX-License-Identifier: Apache-2.0
"""What several tests of qaic build and others use."""

from pathlib import Path

import warm
from checkout import ROOT

STUB = ROOT / "tests" / "stub_qaic" / "qaic-compile"


def compiler(folder: Path, name: str = "qaic-compile") -> Path:
    """Write an executable that runs the stub, under one of the compiler's names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec "{warm.PYTHON.executable}" "{STUB}" "$@"\n')
    path.chmod(0o755)
    return path
