# SPDX-License-Identifier: Apache-2.0
"""Bytes of tokens, for whatever reads an output byte by byte: a token may be a part of a character."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: Bytes that byte-level tokenizers write as the character of the same number; all others follow from U+0100 on.
_SELF = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [byte for byte in range(256) if byte not in _SELF]
_NONE = 0xFFFF  # of a character that stands for no byte
_BYTE_LEVEL = (
    {byte: byte for byte in _SELF}
    | dict.fromkeys(_OTHERS, _NONE)
    | {0x100 + place: byte for place, byte in enumerate(_OTHERS)}
)


def bytes_of_tokens(
    names: Mapping[int, str], decoder: Mapping[str, Any] | None
) -> dict[int, bytes] | None:
    """Return the bytes of every token by id; None if the decoder makes texts of tokens in another way.

    Args:
        names: Name of every token by id, added tokens included.
        decoder: Decoder in the format of tokenizer.json.
    """
    steps = [*_steps(decoder)]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return {token: _of_characters(name) for token, name in names.items()}
    if "ByteFallback" in kinds:
        blank = next(filter(None, map(_blank, steps)), " ")
        return {token: _of_text(name, blank) for token, name in names.items()}
    return None


def missing_bytes(data: bytes) -> int:
    """Return how many bytes the last character of UTF-8 text lacks."""
    for length, byte in enumerate(reversed(data[-3:]), 1):
        if byte < 0x80:
            break
        if byte >= 0xC0:  # begins a character
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return max(0, whole - length)
    return 0


def is_continuation(data: bytes) -> bool:
    """Return whether bytes can only stand within one character."""
    return 0 < len(data) < 4 and all(0x80 <= byte < 0xC0 for byte in data)


def completes(begun: bytes, data: bytes) -> bool:
    """Return whether bytes within a character complete, or continue, the last one of a text.

    Args:
        begun: The text, whose last character is incomplete.
        data: The bytes.
    """
    if len(data) > missing_bytes(begun):
        return False
    start = next(place for place in range(1, 4) if begun[-place] >= 0xC0)
    last = begun[-start:] + data
    try:
        (last + b"\x80" * missing_bytes(last)).decode()
    except UnicodeDecodeError:
        return False
    return True


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield a decoder, or all those of a sequence."""
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        parts: Sequence[Mapping[str, Any]] = decoder.get("decoders") or ()
        for part in parts:
            yield from _steps(part)
    else:
        yield decoder


def _blank(step: Mapping[str, Any]) -> str:
    """Return the character that a decoder replaces by a space, if any."""
    if step.get("type") == "Metaspace":
        return str(step.get("replacement") or "")
    pattern = step.get("pattern") or {}
    is_blank = step.get("type") == "Replace" and step.get("content") == " "
    return str(pattern.get("String") or "") if is_blank else ""


def _of_characters(name: str) -> bytes:
    """Return the bytes of a byte-level token; an added token with other characters is text."""
    try:
        return name.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _of_text(name: str, blank: str) -> bytes:
    """Return the bytes of a token that is text, or a byte."""
    if match := _BYTE.fullmatch(name):
        return bytes([int(match[1], 16)])
    return name.replace(blank, " ").encode()
