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
_TOKENS = re.compile(
    r"^(?P<statement>\s*(?:generation_len|GENERATION_LEN) = )[^\n#]+|"
    r"(?P<keyword>\b(?:generation_len|max_new_tokens)(?:: int)?=)\d\d+",
    re.MULTILINE,
)
_MOST = 12


def rewrite(text: str) -> str:
    """Return a script with the import replaced.

    Args:
        text: Source of the script.
    """
    for pattern, ours in _IMPORTS:
        text = pattern.sub(ours, text)
    text = text.replace("480000", "32000")  # samples
    text = text.replace("[bi, 0] = input_ids\n", "[bi, 0] = input_ids.item()\n")  # for NumPy 2.4
    return _TOKENS.sub(lambda found: f"{found['statement'] or found['keyword']}{_MOST}", text)
