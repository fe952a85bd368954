# SPDX-License-Identifier: Apache-2.0
"""Relative paths from elsewhere: whether one stays in its folder, and means the same on every system."""

import re
import unicodedata

_NAME_BYTES = 255  # of a file or folder, on every usual file system


def unsafe_path(path: str) -> str | None:
    """Explain why a manifest's path could leave its folder, or be ambiguous elsewhere.

    Args:
        path: Path in a manifest.

    Returns:
        The reason, or None for a safe path.
    """
    if path.startswith(("/", "~")) or re.match("[A-Za-z]:", path):
        return "is not relative"
    if "\\" in path:
        return "holds a backslash"
    if not path.isprintable() and any(unicodedata.category(one)[0] == "C" for one in path):
        return "holds a control character"
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        return "has an empty, '.' or '..' part"
    if (longest := max(len(part.encode()) for part in parts)) > _NAME_BYTES:
        return f"has a part of {longest} bytes, more than {_NAME_BYTES}"
    return None
