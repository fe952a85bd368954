# SPDX-License-Identifier: Apache-2.0
"""OpenAI's objects of log-probabilities: of chats and responses, and of completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.runtime import TokenLogprobs
from qeff_zoo.runtime.text.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity, and OpenAI writes this
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class LogprobObjects:
    """Objects of log-probabilities.

    Args:
        tokenizer: Tokenizer for the texts of tokens; None for a package without one.
        as_ids: Whether tokens are written as `token_id:ID`, as in vLLM's API.
    """

    tokenizer: Tokenizer | None
    as_ids: bool = False
    #: Texts of tokens, the same of which are among the alternatives of many others.
    _texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of_chat(self, token: TokenLogprobs) -> dict[str, Any]:
        """Return the object of a token of a chat or a response."""
        top = [self._entry(*one) for one in token.top]
        return {**self._entry(token.token_id, token.logprob), "top_logprobs": top}

    def of_completion(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the object of the tokens of a completion."""
        pairs = [(*one.top, (one.token_id, one.logprob)) for one in logprobs]
        return {
            "tokens": [self._name(one.token_id) for one in logprobs],
            "token_logprobs": [finite(one.logprob) for one in logprobs],
            "top_logprobs": [{self._name(token): finite(value) for token, value in one} for one in pairs],
            "text_offset": [one.offset for one in logprobs],
        }  # fmt: skip

    def text(self, token_id: int) -> str:
        """Return the text of a token."""
        if self.tokenizer is None:
            return f"token_id:{token_id}"
        if token_id not in self._texts:
            self._texts[token_id] = self.tokenizer.piece(token_id)
        return self._texts[token_id]

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.as_ids else self.text(token_id)

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._name(token_id)
        # A token may be a part of a character, which has no text.
        data = None if _INCOMPLETE in text else [*text.encode()]
        return {"token": text, "logprob": finite(logprob), "bytes": data}


def finite(logprob: float) -> float:
    """Return a log-probability, or OpenAI's least one."""
    return max(logprob, _LEAST_LOGPROB)
