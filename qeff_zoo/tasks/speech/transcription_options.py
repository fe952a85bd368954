# SPDX-License-Identifier: Apache-2.0
"""Options of transcriptions, and the rules that retry or drop a window.

The rules are those of transformers' `generate` for Whisper.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.sampling import Sampling
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
    """Options of a transcription.

    Args:
        language: Spoken language, such as "en" or "English"; None for the package's, or to detect it.
        task: Task, "transcribe" or "translate"; None for the package's default.
        target_language: Target language; None for English if the task is translation.
        timestamps: Whether to generate timestamps; None to do so for recordings longer than a window.
        word_timestamps: Whether to return word-level timestamps, as well as segment timestamps.
        prompt: Text before the recording, which shows names and spelling.
        temperature: Temperature of sampling, 0 for greedy; of several, each retries a window that was doubtful at the
            previous one.
        compression_ratio_threshold: Compression ratio of a window's tokens above which it is doubtful, since it is
            repetitive.
        logprob_threshold: Minimum `Segment.avg_logprob` of a window that is not doubtful.
        no_speech_threshold: Minimum `Segment.no_speech_prob` of a dropped window, if it is also below
            `logprob_threshold`.
        condition_on_previous: Whether each window's prompt has the previous transcript, unless sampled at 0.5 or more;
            None for no, unless the package sets it.
        generation_len: Maximum number of tokens of a window; None for the rest of the context.
        seed: Seed of sampling, see `Sampling`.
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
    condition_on_previous: bool | None = None
    generation_len: int | None = None
    seed: int | None = None

    @property
    def translates(self) -> bool:
        """Whether the written language may differ from the spoken one."""
        return self.task == "translate" or self.target_language is not None

    @property
    def samplings(self) -> list[Sampling]:
        """Sampling parameters of each attempt at a window, with seeds of their own.

        Raises:
            GenerationError: A temperature is out of range.
        """
        several = self.temperature if isinstance(self.temperature, Sequence) else [self.temperature]
        return [
            Sampling(temperature=one, seed=None if self.seed is None else self.seed + attempt)
            for attempt, one in enumerate(several)
        ]

    def check(self) -> None:
        """Check the values.

        Raises:
            GenerationError: Values are out of range; the message names all of them.
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
        """Return whether the transcript of a window is doubtful.

        Args:
            tokens: Tokens of the window, with the last token of the output.
            vocab: Size of the vocabulary.
            avg_logprob: Mean of the tokens' natural log-probabilities.
        """
        most, least = self.compression_ratio_threshold, self.logprob_threshold
        return (most is not None and _compression_of(tokens, vocab) > most) or (
            least is not None and avg_logprob < least
        )

    def leaves_out(self, *, avg_logprob: float, no_speech_prob: float | None) -> bool:
        """Return whether the transcript of a window is likely that of silence.

        Args:
            avg_logprob: Mean of the tokens' natural log-probabilities.
            no_speech_prob: Probability of no speech; None if the model does not predict it.
        """
        most, least = self.no_speech_threshold, self.logprob_threshold
        if most is None or least is None or no_speech_prob is None:
            return False
        return avg_logprob < least and no_speech_prob > most


def compression(data: bytes) -> float | None:
    """Return the compression ratio of bytes; None for no bytes."""
    return len(data) / len(zlib.compress(data)) if data else None


def _compression_of(tokens: Sequence[int], vocab: int) -> float:
    width = int(math.log2(vocab) / _BITS) + 1
    return compression(b"".join(token.to_bytes(width, "little") for token in tokens)) or 0.0
