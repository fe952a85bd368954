# SPDX-License-Identifier: Apache-2.0
"""Files that commands are given."""

from pathlib import Path

from qeff_zoo.errors import GenerationError


def read_text(path: Path) -> str:
    """Return the text of a file, or say what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(
            f"Cannot read {str(path)!r}: {error}. Expected a text file in UTF-8."
        ) from error
