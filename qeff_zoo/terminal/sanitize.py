# SPDX-License-Identifier: Apache-2.0
"""Text that came from elsewhere, as it may be shown: nothing in it steers a terminal, or turns what is read around."""

import re
from typing import Any, TextIO, cast

# C0 but tab and newline, DEL, C1; marks, embeddings and overrides of direction; line separators; half characters.
_STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_LONGEST = 200  # characters of a problem; jsonschema quotes whole values


def shown(text: str) -> str:
    r"""Write control characters as JSON escapes, so that JSON stays the same value.

    Args:
        text: Any.

    Example:
        >>> shown("evil\x1b[2J")
        'evil\\u001b[2J'
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(message: str) -> str:
    """Leave out the middle of a long message, and what would steer a terminal."""
    half = _LONGEST // 2
    long = len(message) > _LONGEST
    return shown(f"{message[:half]} … {message[-half:]}" if long else message)


class _Escaping:
    """A stream that writes all text as it may be shown."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(shown(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escaping(stream: TextIO) -> TextIO:
    """Return a stream that passes on what is written to it, as it may be shown.

    Args:
        stream: Text stream.
    """
    return cast("TextIO", _Escaping(stream))


def as_is(stream: TextIO) -> TextIO:
    """Return the stream behind an escaping one, or the stream itself."""
    while isinstance(stream, _Escaping):
        stream = stream.stream
    return stream
