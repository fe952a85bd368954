# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: tokens are drafted cheaply, and verified in one call of the model.

A drafter proposes tokens; the model decides. Each position is sampled by the request's sampler from the model's
logits, and the next draft token counts as long as the sample equals the draft. Thus the generated text, its seed,
penalties, stop strings and log-probabilities do not depend on the drafter or its quality; only the number of calls
does. For deterministic drafts no rule that preserves the distribution accepts more tokens.

A drafter may sample its tokens, and return their distribution. Then each is accepted with probability min(1, p/q),
where p is the request's distribution and q the drafter's, and a rejected token is replaced by a sample of the
remainder of p (Leviathan et al., arXiv 2211.17192): more tokens are accepted, and the distribution is the same, but a
seed generates another text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.program import Array


class Drafter(Protocol):
    """Drafter of one generation."""

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> Sequence[int | Drawn]:
        """Return a draft of the next tokens, as long as pays off; empty if none does.

        Args:
            tokens: Prompt and all generated tokens.
            most: Maximum number of draft tokens.
            rows: Number of requests that would share a call without drafts, each of which is now checked in a
                separate call.
        """

    def accepted(self, count: int) -> None:
        """Record the number of accepted tokens of the last draft; not called for an unchecked draft."""


@runtime_checkable
class Reader(Protocol):
    """A drafter that receives the model's results for each token."""

    def read(self, start: int, hidden: Array) -> None:
        """Receive the draft inputs of consecutive tokens.

        Args:
            start: Position of the first token; earlier inputs from it on are invalid.
            hidden: Draft inputs (tokens, size).
        """


@runtime_checkable
class Sharing(Protocol):
    """A drafter that reads the model's states of its request."""

    def set_slot(self, row: int) -> None:
        """Receive the current batch slot; called before each draft."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Speculative decoding of a session.

    Args:
        most: Maximum number of draft tokens that a call can check.
        drafter: A function that returns the drafter of a request.
    """

    most: int
    drafter: Callable[[Request], Drafter]


#: Draft sources without another package: prompt lookup, and the package's draft heads, layer or assistant.
Own: TypeAlias = Literal["lookup", "heads"]
LOOKUP: Own = "lookup"
HEADS: Own = "heads"
OWN: tuple[Own, ...] = (LOOKUP, HEADS)
#: When a token of a draft model counts: where the request's own draw equals it, or by min(1, p/q).
Acceptance: TypeAlias = Literal["exact", "rejection"]
EXACT: Acceptance = "exact"
REJECTION: Acceptance = "rejection"
