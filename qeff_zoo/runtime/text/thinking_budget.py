# SPDX-License-Identifier: Apache-2.0
"""Budget of reasoning: after a number of tokens the reasoning ends, and the answer begins."""

from dataclasses import dataclass

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.grammar import Guide
from qeff_zoo.runtime.text.token_bytes import completes, missing_bytes
from qeff_zoo.runtime.text.tokenizer import Tokenizer

_CHARACTER = 4  # maximum bytes of a character
_BLANKS = 8  # maximum tokens of blanks before the beginning


@dataclass(frozen=True, kw_only=True)
class ThinkingBudget:
    """Budget of reasoning.

    Args:
        tokens: Maximum number of tokens in the reasoning.
        begin: Text before the reasoning.
        end: Text after it.
        begun: Whether the prompt ends within the reasoning.
        end_ids: Token ids of the end; empty for those of its text.
    """

    tokens: int
    begin: str
    end: str
    begun: bool
    end_ids: tuple[int, ...] = ()


class BudgetGuide:
    """Guide that ends the reasoning of one generation at its budget.

    Args:
        budget: The budget.
        inner: Guide of the output's grammar; None without one.
        tokenizer: Tokenizer of the package.
        vocab_size: Size of the model's logits.
    """

    def __init__(
        self, budget: ThinkingBudget, inner: Guide | None, tokenizer: Tokenizer, vocab_size: int
    ) -> None:
        self._budget, self._inner, self._tokenizer = budget, inner, tokenizer
        self._vocab_size = vocab_size
        self._end = budget.end_ids or (*tokenizer.spell(budget.end),)
        #: Newest tokens among which the beginning or the end is: as many as it has bytes, and blanks before it.
        self._look_back = _BLANKS + max(len(text.encode()) for text in (budget.begin, budget.end))
        self._tokens: list[int] = []
        #: Tokens that must come next, and tokens of which one must, to complete a character.
        self._forced: list[int] = []
        self._completing: list[int] = []
        self._begun, self._over, self._count = budget.begun, False, 0
        self._end_at_budget()

    def allowed(self) -> Array:
        """See `Guide`."""
        if must := self._forced[:1] or self._completing:
            mask = np.zeros(self._vocab_size, bool)
            mask[must] = True
            return mask
        return self._inner.allowed() if self._inner else np.ones(self._vocab_size, bool)

    def allows(self, token: int) -> bool:
        """See `Guide`."""
        if must := self._forced[:1] or self._completing:
            return token in must
        return self._inner is None or self._inner.allows(token)

    def take(self, token: int) -> bool:
        """See `Guide`."""
        is_complete = self._inner.take(token) if self._inner else False
        if self._forced:
            self._forced.pop(0)
        elif not self._over:
            self._tokens.append(token)
            self._count += self._begun
            self._look()
            self._end_at_budget()
        return is_complete

    def _look(self) -> None:
        """Find the beginning or the end of the reasoning."""
        text = self._newest
        if self._begun:
            self._over = self._budget.end in text
        elif text.lstrip().startswith(self._budget.begin):
            self._begun = True
        else:
            self._over = not self._budget.begin.startswith(text.lstrip())

    def _end_at_budget(self) -> None:
        """Force the end of the reasoning, if its budget is spent."""
        self._completing = []
        if not self._begun or self._over:
            return
        end = self._budget.end
        # An end of several tokens that is being generated needs some tokens more.
        begins = len(self._end) > 1 and any(
            self._newest.endswith(end[:length]) for length in range(1, len(end))
        )
        if self._count - self._budget.tokens < (len(end) if begins else 0):
            return
        self._completing = self._completions()
        if not self._completing:
            self._over, self._forced = True, [*self._end]

    def _completions(self) -> list[int]:
        """Return tokens that complete, or continue, the character within which the newest token ends."""
        known = self._tokenizer.token_bytes or {}
        begun = b"".join(known.get(token, b"") for token in self._tokens[-_CHARACTER:])
        if not missing_bytes(begun):
            return []
        return [
            token
            for token, data in self._tokenizer.completions.items()
            if token < self._vocab_size
            and completes(begun, data)
            and (self._inner is None or self._inner.allows(token))
        ]

    @property
    def _newest(self) -> str:
        return self._tokenizer.spelled(self._tokens[-self._look_back :])
