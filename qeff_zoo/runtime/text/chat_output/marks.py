# SPDX-License-Identifier: Apache-2.0
"""Marks of a format that are tokens: the special and the ordinary added tokens among its texts.

Checkpoints add the same mark as a special token or as an ordinary one ("special": false). A model was trained with its
token either way, so outputs must have this token, and not other tokens of the same text.
"""

import re
from collections.abc import Iterable, Mapping

from qeff_zoo.runtime.text.tokenizer import Tokenizer


class Marks:
    """Tokens that stand for themselves in the outputs of a format: no other text has them, and they have no other text.

    Args:
        tokens: Texts of the tokens by id.
    """

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self._by_text = {text: token for token, text in tokens.items() if text}
        longest = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        #: Ids of the tokens.
        self.ids = frozenset(self._by_text.values())

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str]) -> "Marks":
        """Return the tokens of marks in the texts of a format."""
        rows = "\0".join(texts)
        contents = {token: value["content"] for token, value in tokenizer.added.items()}
        within = {token: text for token, text in contents.items() if text in rows}
        special = tokenizer.special.keys()
        return cls(
            {token: text for token, text in within.items() if token in special or _is_mark(text)}
        )

    def pieces(self, text: str) -> list[str | int]:
        """Return the parts of a text: tokens, and the text between them."""
        parts, at = list[str | int](), 0
        for match in self._pattern.finditer(text):
            parts += [text[at : match.start()], self._by_text[match[0]]]
            at = match.end()
        return [piece for piece in (*parts, text[at:]) if piece != ""]

    def encode(self, text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token ids of a text of the format, within an output."""
        pieces = self.pieces(text)
        tokens = [tokenizer.spell(piece) if isinstance(piece, str) else [piece] for piece in pieces]
        return tuple(token for some in tokens for token in some)


def _is_mark(text: str) -> bool:
    """Return whether an added token is more than a word, a number, blanks or punctuation, which any text may have."""
    if len(text) > 2 and text[0] == "<" and text[-1] == ">":
        return True
    word = text.strip().replace("_", "")
    return any(map(str.isalnum, word)) and not word.isalnum()
