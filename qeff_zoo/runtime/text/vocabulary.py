# SPDX-License-Identifier: Apache-2.0
"""Vocabulary of a tokenizer for llguidance: the bytes of each token, and the tokens that are no text.

llguidance's own reading of tokenizer.json takes every added token of the form `<…>` for a special one, and encodes the
text that a grammar forces with the tokens of marks in it, which the grammar then rejects.
"""

from collections.abc import Set
from functools import cached_property

from qeff_zoo.runtime.text.tokenizer import Tokenizer


class Vocabulary:
    """Vocabulary in the form that `llguidance.LLTokenizer` reads.

    Args:
        tokenizer: Tokenizer whose tokens have bytes.
        vocab_size: Size of the model's logits.
        marks: Tokens that a grammar names by id, and that are no text.
    """

    is_tokenizer_wrapper = True
    eos_token_id = bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, marks: Set[int]) -> None:
        self._tokenizer, known = tokenizer, tokenizer.token_bytes or {}
        size = max(vocab_size, max(known, default=0) + 1)
        # Grammars name tokens that are no text by their content.
        names = {
            token: tokenizer.added[token]["content"].encode()
            for token in marks & tokenizer.added.keys()
        }
        written = known | names
        #: Bytes of each token; one without bytes has a name of its own.
        self.tokens = [written.get(token) or b"<[%d]>" % token for token in range(size)]
        #: Tokens that are no text.
        self.special_token_ids = sorted(
            {*marks, *(token for token in range(size) if not known.get(token))}
        )

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar forces."""
        tokens = self._tokenizer.spell(text)
        is_same = b"".join(self.tokens[token] for token in tokens) == text.encode()
        if is_same and self._no_text.isdisjoint(tokens):
            return tokens
        return self._longest(text.encode())  # text that a normalizer changes

    @cached_property
    def _no_text(self) -> frozenset[int]:
        return frozenset(self.special_token_ids)

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {data: token for token, data in enumerate(self.tokens) if token not in self._no_text}

    def _longest(self, data: bytes) -> list[int]:
        """Return tokens of bytes, of which each is the longest that comes next."""
        known, tokens, at = self._by_bytes, list[int](), 0
        longest = max(map(len, known), default=0)
        while at < len(data):
            ends = range(min(len(data), at + longest), at, -1)
            end = next((end for end in ends if data[at:end] in known), None)
            if end is None:  # a byte without a token, at which the grammar ends
                break
            tokens.append(known[data[at:end]])
            at = end
        return tokens
