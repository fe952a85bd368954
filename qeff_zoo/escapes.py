# SPDX-License-Identifier: Apache-2.0
"""Text that came from elsewhere, as it may be shown: nothing in it steers a terminal, or turns what is read around."""

import re

# C0 but tab and newline, DEL, C1; marks, embeddings and overrides of direction; line separators; half characters.
_STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shown(text: str) -> str:
    r"""Write control characters as JSON escapes, so that JSON stays the same value.

    Args:
        text: Any.

    Example:
        >>> shown("evil\x1b[2J")
        'evil\\u001b[2J'
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
