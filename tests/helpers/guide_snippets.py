# SPDX-License-Identifier: Apache-2.0
"""Code of docs/from-qefficient.md, scaled down to a tiny model."""

import re
from collections.abc import Mapping

from checkout import ROOT


def scaled_snippet(name: str, changes: Mapping[str, str]) -> str:
    """Return the code that the guide's only change of a script with a name leads to.

    Args:
        name: A part of the name of a class.
        changes: Replacements of what the script has: a published model, and sizes.
    """
    guide = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
    (snippet,) = (
        code for code in re.findall(r"```diff\n(.*?)```", guide, re.DOTALL) if name in code
    )
    code = "\n".join(line[1:] for line in snippet.splitlines() if not line.startswith("-"))
    for published, tiny in changes.items():
        assert published in code
        code = code.replace(published, tiny)
    return code
