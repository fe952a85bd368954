# SPDX-License-Identifier: Apache-2.0
"""Table of the extras of the distribution, from the comments of pyproject.toml."""

import re
from pathlib import Path

from documentation.tables import table

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
#: Extras of developers.
_INTERNAL = ("test", "docs", "check")


def extras() -> str:
    """Return the table of extras: their names, and what they are for."""
    section = _PYPROJECT.read_text(encoding="utf-8").partition("[project.optional-dependencies]\n")[
        2
    ]
    section = section.partition("\n[")[0]
    found = re.findall(r"((?:^# .*\n)+)([a-z]+) = \[", section, re.MULTILINE)
    rows = [
        [f"`{name}`", " ".join(re.findall(r"# (.*)", text)).rstrip(".")]
        for text, name in found
        if name not in _INTERNAL
    ]
    return table(["extra", "for"], rows)
