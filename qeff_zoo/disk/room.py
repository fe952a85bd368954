# SPDX-License-Identifier: Apache-2.0
"""Room on the disk of a path that need not exist yet."""

import os
import shutil
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists.

    Args:
        path: Path that may be relative; links stay.
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100 -- links stay
    return next(one for one in (whole, *whole.parents) if one.exists())


def free_bytes(path: Path) -> int:
    """Return the number of bytes that this user may write where a path is, or will be.

    Raises:
        OSError: The disk cannot be examined.
    """
    return shutil.disk_usage(nearest_existing(path)).free
