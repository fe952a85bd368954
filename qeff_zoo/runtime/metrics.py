# SPDX-License-Identifier: Apache-2.0
"""How fast a `generate` went: what its calls took, as figures."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from qeff_zoo.runtime.answers import Answer


@dataclass
class Timings:
    """Seconds and tokens of a scheduler's calls.

    Args:
        begun: `time.perf_counter()` at the start.
        first: At the first token.
        prefill_seconds: Spent in prefill calls.
        prefill_tokens: Prompt tokens run.
        reused_tokens: Prompt tokens that the prefix cache had.
        decode_seconds: Spent in decode calls.
        decode_tokens: Tokens that decode calls generated.
        drafted_tokens: Tokens that were drafted and checked.
        accepted_tokens: Accepted tokens among them.
    """

    begun: float = field(default_factory=time.perf_counter)
    first: float | None = None
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How fast it went.

    Args:
        prompt_tokens: Tokens of all prompts.
        reused_tokens: Tokens among them that the prefix cache had.
        generated_tokens: Tokens of all answers.
        ttft_s: Seconds to the first token of the first prompt.
        prefill_tokens_per_s: Prompt tokens that were computed by the time of prefill calls.
        decode_tokens_per_s: Generated tokens by the time of decode calls; 0 where there were none.
        total_s: Seconds in all.
        drafted_tokens: Tokens that were drafted and checked.
        accepted_tokens: Accepted tokens among them.
        pictures: In all prompts.
        encoded_pictures: Images among them that the vision encoder ran on; the others were cached.
        sounds: Number of audio inputs, see `pictures`.
        encoded_sounds: Number of encoded audio inputs, see `encoded_pictures`.
        encoding_s: Seconds that reading took, before the others began.
    """

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    total_s: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pictures: int = 0
    encoded_pictures: int = 0
    sounds: int = 0
    encoded_sounds: int = 0
    encoding_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the values as JSON ones."""
        return asdict(self)

    def __str__(self) -> str:
        drafted = (
            f"; {self.accepted_tokens:,} of {self.drafted_tokens:,} drafted tokens accepted"
            if self.drafted_tokens
            else ""
        )
        read = (
            ("pictures", self.pictures, self.encoded_pictures),
            ("sounds", self.sounds, self.encoded_sounds),
        )
        seen = "".join(
            f"{encoded:,} of {count:,} {kind} encoded in {self.encoding_s:.2f} s; "
            for kind, count, encoded in read
            if count
        )
        return seen + (
            f"{self.prompt_tokens:,} prompt tokens at {self.prefill_tokens_per_s:,.1f}/s, first answer after "
            f"{self.ttft_s:.2f} s; {self.generated_tokens:,} tokens at {self.decode_tokens_per_s:,.1f}/s; "
            f"{self.total_s:.2f} s in all{drafted}"
        )


def measured(timings: Timings, answers: Sequence[Answer]) -> Metrics:
    """Return how fast answers came that have ended.

    Args:
        timings: Timings of their scheduler.
        answers: All of them.
    """
    now = time.perf_counter()
    every = [one for answer in answers for one in answer.request.encoded]
    encoded: Counter[str] = Counter(one.kind for one in every if one.seconds)
    counts: Counter[str] = Counter(one.kind for one in every)
    return Metrics(
        prompt_tokens=sum(answer.request.prompt_tokens for answer in answers),
        reused_tokens=timings.reused_tokens,
        generated_tokens=sum(len(answer.token_ids) for answer in answers),
        ttft_s=(timings.first or now) - timings.begun,
        prefill_tokens_per_s=_rate(timings.prefill_tokens, timings.prefill_seconds),
        decode_tokens_per_s=_rate(timings.decode_tokens, timings.decode_seconds),
        total_s=now - timings.begun,
        drafted_tokens=timings.drafted_tokens,
        accepted_tokens=timings.accepted_tokens,
        pictures=counts["pictures"],
        encoded_pictures=encoded["pictures"],
        sounds=counts["sounds"],
        encoded_sounds=encoded["sounds"],
        encoding_s=sum(one.seconds for one in every),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
