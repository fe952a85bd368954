# SPDX-License-Identifier: Apache-2.0
"""Whether others can get this very qeff-zoo: the sources of a checkout may have uncommitted changes."""

import subprocess
from pathlib import Path

_SOURCES = ("qeff_zoo", "recipes")
_SECONDS = 20.0


def has_uncommitted_changes(root: Path = Path(__file__).parents[2]) -> bool:
    """Ask git about a checkout; an installed package, which is none, is what was released.

    Args:
        root: Of the checkout; that of the code that runs.
    """
    if not (root / ".git").exists():
        return False
    command = ["git", "-C", str(root), "status", "--porcelain", "--", *_SOURCES]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):  # without git nobody can tell
        return False
    return bool(done.stdout.strip())
