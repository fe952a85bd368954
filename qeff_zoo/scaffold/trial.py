# SPDX-License-Identifier: Apache-2.0
"""A recipe's file is tried: its tiny models become packages and are compared with unpatched Hugging Face.

That is `qeff-zoo validate` in a process of its own, where the file precedes every other recipe of its name.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.registry import RECIPES_ENV


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of trying a recipe.

    Args:
        passed: Whether all of its tiny models agree.
        report: Result of the comparison, or the reason why none was possible.
    """

    passed: bool
    report: str


def try_out(file: Path) -> Trial:
    """Compare a recipe's tiny models with Hugging Face; takes some seconds for each, and changes nothing.

    Args:
        file: File of the recipe.
    """
    folders = [str(file.parent.resolve()), os.environ.get(RECIPES_ENV, "")]
    environment = {**os.environ, RECIPES_ENV: os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-m", "qeff_zoo", "validate", file.stem, "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    report = done.stdout or (done.stderr.strip().splitlines() or ["It said nothing."])[-1]
    return Trial(passed=done.returncode == 0, report=report.strip())
