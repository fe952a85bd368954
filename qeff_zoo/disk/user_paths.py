# SPDX-License-Identifier: Apache-2.0
"""Paths that users write where a Hub id is also possible: which text is a path, and which path was meant."""

from contextlib import suppress
from pathlib import Path

from qeff_zoo.errors import did_you_mean


def is_path(reference: str) -> bool:
    """Whether a text is written as a path, so that it cannot be a Hub id.

    Args:
        reference: A path, a Hub id `org/name` or `org/name/folder`, or any text.
    """
    return reference.startswith((".", "/", "~")) or reference.endswith("/")


def similar_path(reference: str) -> str:
    """Return the question for the path with the nearest name, after a space; empty without one.

    Args:
        reference: A path that does not exist.
    """
    with suppress(OSError, RuntimeError, ValueError):  # unknown user, impossible name
        missing = Path(reference).expanduser()
        while not missing.parent.is_dir():
            missing = missing.parent
        names = [path.name for path in missing.parent.iterdir()]
        return did_you_mean(missing.name, names, lambda name: repr(str(missing.with_name(name))))
    return ""
