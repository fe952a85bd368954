# SPDX-License-Identifier: Apache-2.0
"""JSON files of checkpoints, read without trust: a path in, its content or one error out, however deep it is nested."""

import json
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Read a small file with one JSON object.

    Args:
        path: A small file.

    Raises:
        CheckpointError: The file is unreadable, or has other content.
    """
    value = _json(path, "one JSON object")
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{str(path)!r} holds a JSON {type(value).__name__}. Expected an object. Get the file "
            "again from its source."
        )
    return value


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Read a small file with a JSON list of objects.

    Args:
        path: A small file.

    Raises:
        CheckpointError: The file is unreadable, or has other content.
    """
    objects = _json(path, "a JSON list of objects")
    if not isinstance(objects, list) or not all(
        isinstance(detection, dict) for detection in objects
    ):
        raise CheckpointError(
            f"{str(path)!r} holds something else than a JSON list of objects. Expected such a list. Get the file "
            "again from its source."
        )
    return objects


def _json(path: Path, expected: str) -> Any:
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"Cannot read {str(path)!r} as JSON: {error}. Expected {expected}. Get the file again from its source."
        ) from error
