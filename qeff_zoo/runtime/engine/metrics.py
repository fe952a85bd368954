# SPDX-License-Identifier: Apache-2.0
"""Metrics of a `generate` call: its speed, measured over its calls."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from qeff_zoo.runtime.engine.answers import Answer


@dataclass
class Timings:
    """Seconds and tokens of a scheduler's calls.

    Args:
        begun: `time.perf_counter()` at the start.
        first: Time of the first token.
        prefill_seconds: Time in prefill calls.
        prefill_tokens: Number of prompt tokens that were run.
        reused_tokens: Number of prompt tokens that the prefix cache had.
        decode_seconds: Time in decode calls.
        decode_tokens: Number of tokens that decode calls generated.
        drafted_tokens: Number of drafted and checked tokens.
        accepted_tokens: Number of accepted tokens among them.
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

    @property
    def tokens(self) -> int:
        """Number of tokens that all calls ran or generated."""
        return self.prefill_tokens + self.decode_tokens


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Speed and token counts of a generation.

    Args:
        prompt_tokens: Number of tokens in all prompts.
        reused_tokens: Number of tokens among them that the prefix cache had.
        generated_tokens: Number of generated tokens.
        ttft_s: Seconds to the first token of the first prompt.
        prefill_tokens_per_s: Computed prompt tokens per second of prefill calls.
        decode_tokens_per_s: Generated tokens per second of decode calls; 0 without decode calls.
        total_s: Total time in seconds.
        drafted_tokens: Number of drafted and checked tokens.
        accepted_tokens: Number of accepted tokens among them.
        images: Number of images in all prompts.
        encoded_images: Number of images among them that the vision encoder encoded; the others were cached.
        audio: Number of audio inputs, see `images`.
        encoded_audio: Number of encoded audio inputs, see `encoded_images`.
        encoding_s: Time for encoding in seconds, before generation began.
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
    images: int = 0
    encoded_images: int = 0
    audio: int = 0
    encoded_audio: int = 0
    encoding_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the metrics as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        drafted = (
            f"; {self.accepted_tokens:,} of {self.drafted_tokens:,} drafted tokens accepted"
            if self.drafted_tokens
            else ""
        )
        read = (
            ("images", self.images, self.encoded_images),
            ("recordings", self.audio, self.encoded_audio),
        )
        media = "".join(
            f"{encoded:,} of {count:,} {kind} encoded in {self.encoding_s:.2f} s; "
            for kind, count, encoded in read
            if count
        )
        return media + (
            f"{self.prompt_tokens:,} prompt tokens at {self.prefill_tokens_per_s:,.1f}/s, first token after "
            f"{self.ttft_s:.2f} s; {self.generated_tokens:,} tokens at {self.decode_tokens_per_s:,.1f}/s; "
            f"{self.total_s:.2f} s in all{drafted}"
        )


def measured(timings: Timings, answers: Sequence[Answer]) -> Metrics:
    """Return the metrics of generations that have ended.

    Args:
        timings: Timings of the scheduler.
        answers: All generations of the scheduler.
    """
    now = time.perf_counter()
    every = [one for answer in answers for one in answer.request.encoded]
    encoded: Counter[str] = Counter(one.kind for one in every if one.seconds)
    counts: Counter[str] = Counter(one.kind for one in every)
    return Metrics(
        prompt_tokens=sum(answer.request.prompt_tokens for answer in answers),
        reused_tokens=timings.reused_tokens,
        generated_tokens=sum(len(answer.generated) for answer in answers),
        ttft_s=(timings.first or now) - timings.begun,
        prefill_tokens_per_s=_rate(timings.prefill_tokens, timings.prefill_seconds),
        decode_tokens_per_s=_rate(timings.decode_tokens, timings.decode_seconds),
        total_s=now - timings.begun,
        drafted_tokens=timings.drafted_tokens,
        accepted_tokens=timings.accepted_tokens,
        images=counts["images"],
        encoded_images=encoded["images"],
        audio=counts["audio"],
        encoded_audio=encoded["audio"],
        encoding_s=sum(one.seconds for one in every),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
