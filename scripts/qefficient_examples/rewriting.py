# SPDX-License-Identifier: Apache-2.0
"""A script of QEfficient's as a user of qeff-zoo changes it: the import alone. Lengths become small."""

import re

_IMPORTS = (
    (re.compile(r"^(\s*)from QEfficient\b", re.MULTILINE), r"\1from qeff_zoo.qefficient"),
    (
        re.compile(r"^(\s*)import QEfficient\s*$", re.MULTILINE),
        r"\1import qeff_zoo.qefficient as QEfficient",
    ),
    (re.compile(r"^(\s*)import QEfficient\.", re.MULTILINE), r"\1import qeff_zoo.qefficient."),
)
_TOKENS = re.compile(r"\b(generation_len(?:\s*:\s*int)?\s*=\s*)(?!\d\b)(?:\d+|CTX_LEN\b[^\n,)]*)")
_MOST = 12


def rewrite(text: str) -> str:
    """Return a script with the import replaced.

    Args:
        text: Source of the script.
    """
    for pattern, ours in _IMPORTS:
        text = pattern.sub(ours, text)
    return _TOKENS.sub(rf"\g<1>{_MOST}", text.replace("480000", "32000"))
