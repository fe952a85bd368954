# SPDX-License-Identifier: Apache-2.0
"""What was said in a recording, however it was found out: text, and its parts with their times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PAUSE = 0.6  # seconds between words, at which a segment ends
_LONGEST = 10.0  # seconds of a segment of words


@dataclass(frozen=True, kw_only=True)
class TimedText:
    """A word, or another part of what was said.

    Args:
        text: Without spaces around it.
        start: In seconds from the beginning of the recording.
        end: The same.
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Segment(TimedText):
    """A stretch of speech that a model wrote down at once.

    Args:
        tokens: Of the text, times included; none of models that label frames.
        avg_logprob: Mean of the tokens' natural log-probabilities, of the window that it is of; None where there are
            no tokens.
        temperature: That they were drawn at.
        compression_ratio: How many times shorter the window's text gets when it is compressed: what is said over and
            over has a large one. None where it was not computed.
        no_speech_prob: How likely the model finds it that nothing is said in the window; None where it cannot tell.
    """

    tokens: tuple[int, ...] = ()
    avg_logprob: float | None = None
    temperature: float = 0.0
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Transcription:
    """What was said in a recording.

    Args:
        text: All of it; "" for silence.
        words: With their times; of models that write token by token, where those are asked for.
        segments: With their times.
        language: Code of the language, as "en"; None where the model knows one only.
        seconds: Of the recording.
    """

    text: str
    words: tuple[TimedText, ...] = ()
    segments: tuple[Segment, ...] = ()
    language: str | None = None
    seconds: float


def joined(words: Sequence[TimedText]) -> Iterator[Segment]:
    """Join words to segments that end at pauses, or before they get long."""
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
