# SPDX-License-Identifier: Apache-2.0
"""Whether the sources of this qeff-zoo are available to others: a checkout may have uncommitted changes."""

import subprocess
from pathlib import Path

_SOURCES = ("qeff_zoo", "recipes")
_SECONDS = 20.0


def has_uncommitted_changes(root: Path = Path(__file__).parents[2]) -> bool:
    """Return whether git reports changes in a checkout; an installed package is a release and has none.

    Args:
        root: Root of the checkout; by default that of the running code.
    """
    if not (root / ".git").exists():
        return False
    command = ["git", "-C", str(root), "status", "--porcelain", "--", *_SOURCES]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):  # unknown without git
        return False
    return bool(done.stdout.strip())
