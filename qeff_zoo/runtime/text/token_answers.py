# SPDX-License-Identifier: Apache-2.0
"""Answers of a tokenizer as JSON, written in this process or, for a long text, in a worker."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from qeff_zoo.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Options of an answer with tokens.

    Args:
        most: Maximum number of tokens of the model.
        names: Whether to add the tokens' texts in the vocabulary.
        pieces: Whether to add the text of each token to its id.
    """

    most: int
    names: bool
    pieces: bool


def tokenized(tokenizer: Tokenizer | None, tokens: Sequence[int], options: TokenOptions) -> bytes:
    """Return the JSON of a text's tokens, as in vLLM and llama-server.

    Args:
        tokenizer: Tokenizer of the package; None if neither names nor pieces are requested.
        tokens: Token ids.
        options: Options of the answer.
    """
    listed: Sequence[Any] = tokens
    if options.pieces:
        assert tokenizer
        known = {token: tokenizer.piece(token) for token in dict.fromkeys(tokens)}
        listed = [{"id": token, "piece": known[token]} for token in tokens]
    answer = {
        "count": len(tokens),
        "max_model_len": options.most,
        "tokens": listed,
        "token_strs": [*map(tokenizer.name, tokens)] if options.names and tokenizer else None,
    }
    return _json(answer)


def detokenized(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    """Return the JSON of the text of tokens, under vLLM's name and llama-server's."""
    text = tokenizer.spelled(tokens)
    return _json({"prompt": text, "content": text})


def tokenized_in(
    folder: Path, lowers: bool, text: str, special: bool, options: TokenOptions
) -> bytes:
    """Return the JSON of a text's tokens, for the tokenizer of a folder; see `tokenized`.

    Args:
        folder: Folder of the package.
        lowers: Whether the tokenizer converts texts to lower case.
        text: The text.
        special: Whether special tokens are added.
        options: Options of the answer.
    """
    tokenizer = _tokenizer_in(folder, lowers)
    tokens = tokenizer.encode(text, special_tokens=special)
    return tokenized(tokenizer, tokens, options)


def detokenized_in(folder: Path, tokens: Sequence[int]) -> bytes:
    """Return the JSON of the text of tokens, for the tokenizer of a folder."""
    return detokenized(_tokenizer_in(folder, False), tokens)


@lru_cache(4)
def _tokenizer_in(folder: Path, lowers: bool) -> Tokenizer:
    tokenizer = Tokenizer(folder)
    if lowers:
        tokenizer.use_lowercase()
    return tokenizer


def _json(answer: Any) -> bytes:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
