# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: tokens are drafted cheaply, and verified in one call of the model.

A drafter guesses; the model decides. Each position is drawn by the request's own sampler from the model's own logits,
and the next one counts as long as the draw equals the draft. So what an answer says, its seed, penalties, stop strings
and log-probabilities do not depend on who drafts, or how well; only the number of calls does. For drafts that are
certain that accepts as many as any rule can that leaves the distribution as it is.

A drafter may draw its tokens at random, and say from which distribution. Then each counts with the chance min(1, p/q),
where p is the request's own distribution and q the drafter's, and what does not count is drawn from what q left of p
(Leviathan et al., arXiv 2211.17192): more count, and the distribution is the same, but a seed gives another answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from qeff_zoo.runtime.answers import Request
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sampling import Drawn


class Drafter(Protocol):
    """Guesses how one answer goes on."""

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> Sequence[int | Drawn]:
        """Guess what follows: as many tokens as pay, none where none do.

        Args:
            tokens: The prompt and all of the answer so far.
            most: Tokens that may be drafted.
            rows: Requests that would share a call without drafts, each of which is now checked in one of its own.
        """

    def accepted(self, count: int) -> None:
        """Record the number of accepted tokens of the last draft; not called for an unchecked draft."""


@runtime_checkable
class Reader(Protocol):
    """A drafter that receives the model's results for each token."""

    def read(self, start: int, hidden: Array) -> None:
        """Take what heads draft from, of tokens that follow one another.

        Args:
            start: Position of the first; what was told of it and of those after it before holds no longer.
            hidden: (tokens, size).
        """


@runtime_checkable
class Sharing(Protocol):
    """A drafter that reads what the model retains of its request."""

    def sees(self, row: int) -> None:
        """Receive the current row; called before each draft."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """How the answers of a session are drafted.

    Args:
        most: Tokens that a call can check.
        drafter: Makes one for a request.
    """

    most: int
    drafter: Callable[[Request], Drafter]


#: What drafts without another package: the text itself, and heads that the package has.
Own: TypeAlias = Literal["lookup", "heads"]
LOOKUP: Own = "lookup"
HEADS: Own = "heads"
OWN: tuple[Own, ...] = (LOOKUP, HEADS)
#: When a token of a draft model counts: where the request's own draw equals it, or by min(1, p/q).
Acceptance: TypeAlias = Literal["exact", "rejection"]
EXACT: Acceptance = "exact"
REJECTION: Acceptance = "rejection"
