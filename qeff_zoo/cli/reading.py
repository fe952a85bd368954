# SPDX-License-Identifier: Apache-2.0
"""What commands are given: files, and the choices of a build."""

import argparse
from pathlib import Path
from typing import Any

from qeff_zoo.choices import CHOICES
from qeff_zoo.errors import GenerationError


def read_text(path: Path) -> str:
    """Return the text of a file, or say what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(
            f"Cannot read {str(path)!r}: {error}. Expected a text file in UTF-8."
        ) from error


def choices_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was asked of a build or of a package, by the fields of `qeff_zoo.choices.Request`."""
    return {name: getattr(arguments, name) for name in CHOICES}
