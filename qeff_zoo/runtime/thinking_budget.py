# SPDX-License-Identifier: Apache-2.0
"""Budget of reasoning: after a number of tokens the reasoning ends, and the answer begins."""

from dataclasses import dataclass

import numpy as np

from qeff_zoo.runtime.grammar import Guide
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.tokenizer import Tokenizer

_LOOK = 32  # newest tokens among which the end is


@dataclass(frozen=True, kw_only=True)
class ThinkingBudget:
    """Budget of reasoning.

    Args:
        tokens: Maximum number of tokens in the reasoning.
        begin: Text before the reasoning.
        end: Text after it.
        begun: Whether the prompt ends within the reasoning.
    """

    tokens: int
    begin: str
    end: str
    begun: bool


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
        self._tokens: list[int] = []
        #: Tokens that must come next.
        self._forced: list[int] = []
        self._begun, self._over, self._count = budget.begun, False, 0
        self._end_at_budget()

    def allowed(self) -> Array:
        """See `Guide`."""
        if self._forced:
            mask = np.zeros(self._vocab_size, bool)
            mask[self._forced[0]] = True
            return mask
        return self._inner.allowed() if self._inner else np.ones(self._vocab_size, bool)

    def allows(self, token: int) -> bool:
        """See `Guide`."""
        if self._forced:
            return token == self._forced[0]
        return self._inner is None or self._inner.allows(token)

    def take(self, token: int) -> bool:
        """See `Guide`."""
        if self._forced:
            self._forced.pop(0)
        elif not self._over:
            self._tokens.append(token)
            self._count += self._begun
            self._look()
            self._end_at_budget()
        return self._inner.take(token) if self._inner else False

    def _look(self) -> None:
        """Find the beginning or the end of the reasoning."""
        text = self._tokenizer.spelled(self._tokens[-_LOOK:])
        if self._begun:
            self._over = self._budget.end in text
        elif text.lstrip().startswith(self._budget.begin):
            self._begun = True
        else:
            self._over = not self._budget.begin.startswith(text.lstrip())

    def _end_at_budget(self) -> None:
        if not self._begun or self._over:
            return
        over, end = self._count - self._budget.tokens, self._budget.end
        text = self._tokenizer.spelled(self._tokens[-_LOOK:])
        begins = any(text.endswith(end[:length]) for length in range(1, len(end)))
        if over >= (
            len(end) if begins else 0
        ):  # an end that is being written needs some tokens more
            self._over = True
            self._forced = self._tokenizer.encode(self._budget.end, special_tokens=False)
