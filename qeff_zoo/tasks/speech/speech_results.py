# SPDX-License-Identifier: Apache-2.0
"""Transcriptions: text, and its parts with their times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PAUSE = 0.6  # seconds between words, at which a segment ends
_LONGEST = 10.0  # seconds of a segment of words


@dataclass(frozen=True, kw_only=True)
class TimedText:
    """A word, or another part of a transcript.

    Args:
        text: Text without spaces around it.
        start: Start in seconds from the beginning of the recording.
        end: End in the same unit.
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Segment(TimedText):
    """A part of speech that a model transcribed as a unit.

    Args:
        tokens: Tokens of the text, timestamps included; empty for CTC models.
        avg_logprob: Mean natural log-probability of the window's tokens; None without tokens.
        temperature: Temperature of their sampling.
        compression_ratio: Ratio of the size of the window's text to its compressed size, which is large for repetitive
            text. None if it was not computed.
        no_speech_prob: Probability that the window has no speech; None if the model does not predict it.
    """

    tokens: tuple[int, ...] = ()
    avg_logprob: float | None = None
    temperature: float = 0.0
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Transcription:
    """Transcript of a recording.

    Args:
        text: Whole text; "" for silence.
        words: Words with their times; on request, for models that transcribe token by token.
        segments: Segments with their times.
        language: Code of the language, such as "en"; None for models of one language.
        seconds: Duration of the recording.
    """

    text: str
    words: tuple[TimedText, ...] = ()
    segments: tuple[Segment, ...] = ()
    language: str | None = None
    seconds: float


def joined(words: Sequence[TimedText]) -> Iterator[Segment]:
    """Join words to segments that end at pauses, or at a maximum duration."""
    part: list[TimedText] = []
    for word in words:
        far = part and word.start - part[-1].end > _PAUSE
        long = part and word.end - part[0].start > _LONGEST
        if far or long:
            yield _segment(part)
            part = []
        part.append(word)
    if part:
        yield _segment(part)


def _segment(words: Sequence[TimedText]) -> Segment:
    text = " ".join(word.text for word in words)
    return Segment(text=text, start=words[0].start, end=words[-1].end)
