# SPDX-License-Identifier: Apache-2.0
"""Parts of texts that one call speaks: the whole text, else sentences, clauses or words."""

import re
from collections.abc import Callable, Iterator, Sequence

from qeff_zoo.errors import GenerationError

#: Ends of passages, the largest first.
_ENDS = (
    re.compile(r"(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f\u0964])|\n+"),
    re.compile(r"(?<=[,;:\u2013\u2014])\s+|(?<=[\uff0c\u3001\uff1b])"),
    re.compile(r"\s+"),
)


def parts_of(
    text: str,
    encode: Callable[[str], list[int]],
    longest: int,
    *,
    by_sentence: bool = False,
) -> list[list[int]]:
    """Return the tokens of a text in as few parts as possible; none for a text without tokens.

    Args:
        text: Text.
        encode: Tokenizer.
        longest: Maximum number of tokens in a part.
        by_sentence: Whether each sentence is a part.

    Raises:
        GenerationError: A word has more tokens.
    """
    pieces = map(str.strip, _split(text, _ENDS[0])) if by_sentence else [text]
    parts = [ids for piece in pieces for ids in _fitting(piece, encode, longest, _ENDS)]
    return [ids for ids in parts if ids]


def _fitting(
    text: str,
    encode: Callable[[str], list[int]],
    longest: int,
    ends: Sequence[re.Pattern[str]],
) -> Iterator[list[int]]:
    """Yield the tokens of a text, split at its ends if it has too many."""
    ids = encode(text)
    if len(ids) <= longest:
        yield ids
        return
    if not ends:
        raise GenerationError(
            f"The word {text[:40]!r} has {len(ids):,} tokens; expected at most {longest:,}, the package's longest "
            "sequence. Divide it by spaces, or build the package with a larger --seq-lens."
        )
    held = ""
    for piece in _split(text, ends[0]):
        if held and len(encode((held + piece).strip())) > longest:
            yield from _fitting(held.strip(), encode, longest, ends[1:])
            held = ""
        held += piece
    yield from _fitting(held.strip(), encode, longest, ends[1:])


def _split(text: str, ends: re.Pattern[str]) -> Iterator[str]:
    """Yield the pieces of a text, each with its end."""
    start = 0
    for match in ends.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]
