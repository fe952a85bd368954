# SPDX-License-Identifier: Apache-2.0
"""A script of QEfficient's as a user of qeff-zoo changes it: the import alone."""

import re

_IMPORTS = (
    (re.compile(r"^(\s*)from QEfficient\b", re.MULTILINE), r"\1from qeff_zoo.qefficient"),
    (
        re.compile(r"^(\s*)import QEfficient\s*$", re.MULTILINE),
        r"\1import qeff_zoo.qefficient as QEfficient",
    ),
    (re.compile(r"^(\s*)import QEfficient\.", re.MULTILINE), r"\1import qeff_zoo.qefficient."),
)


def rewrite(text: str) -> str:
    """Return a script with the import replaced, and nothing else changed.

    Args:
        text: Source of the script.
    """
    for pattern, ours in _IMPORTS:
        text = pattern.sub(ours, text)
    return text
