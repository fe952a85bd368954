# SPDX-License-Identifier: Apache-2.0
"""How a recording is written down, and when what was said in a window is to be tried again, or left out.

The rules are those of transformers' `generate` for Whisper.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.sampling import Sampling
from qeff_zoo.tasks.speech.speech_tokens import SpeechTask

#: Choices that draw again what looks wrong, and leave out what is likely silence: those that transformers recommends.
TEMPERATURE_FALLBACK: Mapping[str, Any] = MappingProxyType(
    {
        "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        "compression_ratio_threshold": 1.35,
        "logprob_threshold": -1.0,
        "no_speech_threshold": 0.6,
    }
)
_BITS = 8  # of a byte


@dataclass(frozen=True, kw_only=True)
class TranscriptionOptions:
    """How a recording is written down.

    Args:
        language: That is spoken, as "en" or "English"; None to detect it.
        task: "transcribe", or "translate"; None for what the package does without being told.
        target_language: To translate into; None for English where the task is to translate.
        timestamps: Whether times are told; None for where a recording is longer than a window.
        word_timestamps: Whether times of words are told, as well as those of segments.
        prompt: Text that might have come before, which shows names and spelling.
        temperature: 0 for the likeliest token each time; of several, each is for a window that looked wrong at the one
            before.
        compression_ratio_threshold: A window whose tokens get more than so many times shorter when they are compressed
            looks wrong: it says the same over and over.
        logprob_threshold: A window whose `Segment.avg_logprob` is below looks wrong.
        no_speech_threshold: What is below `logprob_threshold` is left out where `Segment.no_speech_prob` is above.
        condition_on_previous: Begin each window with what was said before it, unless that was drawn at 0.5 or more.
        generation_len: Tokens of a window at most; None for as many as fit.
        seed: As of `Sampling`.
    """

    language: str | None = None
    task: SpeechTask | None = None
    target_language: str | None = None
    timestamps: bool | None = None
    word_timestamps: bool = False
    prompt: str | None = None
    temperature: float | Sequence[float] = 0.0
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_previous: bool = False
    generation_len: int | None = None
    seed: int | None = None

    @property
    def translates(self) -> bool:
        """Whether what is written may be in another language than what is said."""
        return self.task == "translate" or self.target_language is not None

    @property
    def samplings(self) -> list[Sampling]:
        """How tokens are chosen in each attempt at a window, which draws numbers of its own.

        Raises:
            GenerationError: A temperature is out of its range.
        """
        several = self.temperature if isinstance(self.temperature, Sequence) else [self.temperature]
        return [
            Sampling(temperature=one, seed=None if self.seed is None else self.seed + attempt)
            for attempt, one in enumerate(several)
        ]

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            GenerationError: A value is out of its range; the message names all that are.
        """
        attempts = len(self.samplings)
        if problems := [*self._problems(attempts)]:
            raise GenerationError("\n".join(problems))

    def _problems(self, attempts: int) -> Iterator[str]:
        length = self.generation_len
        if length is not None and length < 1:
            yield f"generation_len is {length}, expected at least 1. Leave it out, or give more."
        if self.task == "transcribe" and self.target_language is not None:
            yield (
                f"task is 'transcribe' and target_language {self.target_language!r}; expected one of the two. Leave "
                "the task out to translate, or the language to write what is said."
            )
        if self.word_timestamps and self.timestamps is False:
            yield (
                "timestamps is False and word_timestamps is True; expected both, since words are those of segments. "
                "Leave timestamps out."
            )
        if not attempts:
            yield "temperature is an empty list; expected at least one number. Leave it out, or give 0."
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                yield f"{name} is {value!r}; expected a number, or None. Change it."
        if attempts > 1 and self.compression_ratio_threshold is self.logprob_threshold is None:
            yield (
                f"temperature has {attempts} values, and nothing says when the next is to be tried; expected "
                "compression_ratio_threshold, logprob_threshold or both. Give one, or a single temperature."
            )
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            yield (
                f"no_speech_threshold is {self.no_speech_threshold} without logprob_threshold; expected both, since "
                "only text that the model doubts is left out as silence. Give it, or leave the other out."
            )

    def doubts(self, tokens: Sequence[int], *, vocab: int, avg_logprob: float) -> bool:
        """Tell whether what was said in a window looks wrong.

        Args:
            tokens: Of the window, with that which ends it.
            vocab: Size of the vocabulary.
            avg_logprob: Mean of the tokens' natural log-probabilities.
        """
        most, least = self.compression_ratio_threshold, self.logprob_threshold
        return (most is not None and _compression_of(tokens, vocab) > most) or (
            least is not None and avg_logprob < least
        )

    def leaves_out(self, *, avg_logprob: float, no_speech_prob: float | None) -> bool:
        """Tell whether what was said in a window is likely made of silence.

        Args:
            avg_logprob: Mean of the tokens' natural log-probabilities.
            no_speech_prob: How likely it is that nothing is said; None where the model cannot tell.
        """
        most, least = self.no_speech_threshold, self.logprob_threshold
        if most is None or least is None or no_speech_prob is None:
            return False
        return avg_logprob < least and no_speech_prob > most


def compression(data: bytes) -> float | None:
    """Return how many times shorter bytes get when they are compressed; None of nothing."""
    return len(data) / len(zlib.compress(data)) if data else None


def _compression_of(tokens: Sequence[int], vocab: int) -> float:
    width = int(math.log2(vocab) / _BITS) + 1
    return compression(b"".join(token.to_bytes(width, "little") for token in tokens)) or 0.0
