# SPDX-License-Identifier: Apache-2.0
"""The map of folders in docs/architecture.md: one line for each, from the docstring of its `__init__`."""

import ast
import re
from pathlib import Path

from documentation.tables import table

CORE = Path(__file__).parents[2] / "qeff_zoo"


def folders() -> str:
    """Return the table of folders below qeff_zoo."""
    inits = sorted(CORE.rglob("__init__.py"), key=lambda path: path.parent.parts)
    rows = [
        [f"`{path.parent.relative_to(CORE.parent)}/`", summary(path)]
        for path in inits
        if path.parent != CORE
    ]
    return table(["folder", "content"], rows)


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`])\. (?=[A-Z])", first)[0].rstrip(".")
