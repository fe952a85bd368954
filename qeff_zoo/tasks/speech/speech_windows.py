# SPDX-License-Identifier: Apache-2.0
"""A recording on its way through a speech model: windows of it in, one after the other; segments with times out.

A window begins where the last segment of the one before ended, as in transformers' `generate` for long recordings.
What was begun and not ended in a window is heard again in the next.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sampling import Sampler
from qeff_zoo.tasks.speech.speech_results import Segment, TimedText
from qeff_zoo.tasks.speech.speech_tokens import TICK, SpeechTokens
from qeff_zoo.tasks.speech.transcription_options import TranscriptionOptions, compression
from qeff_zoo.tasks.speech.word_timestamps import words_of

#: Token ids -> text.
Decode = Callable[[Sequence[int]], str]
_DIGITS = 2  # of seconds
_HOT = 0.5  # a temperature; what was drawn at that does not begin the next window


@dataclass(kw_only=True)
class Window:
    """What is said in one window, so far.

    Args:
        begun: Tokens that it was begun with.
        limit: Tokens to come at most.
        no_speech_prob: How likely it is that nothing is said in it; None before that is known, or where the model
            cannot tell.
        attempt: How often it was tried before.
        answer: Tokens so far.
        logprob: Sum of their natural log-probabilities.
        vocab: Size of the vocabulary; 0 before the first token.
    """

    begun: tuple[int, ...]
    limit: int
    no_speech_prob: float | None = None
    attempt: int = 0
    answer: list[int] = field(default_factory=list)
    logprob: float = 0.0
    vocab: int = 0

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.begun) + len(self.answer)

    @property
    def avg_logprob(self) -> float:
        """Mean of the tokens' natural log-probabilities."""
        return self.logprob / len(self.answer)


class Recording:
    """A recording that is being written down.

    Args:
        features: (frames, bins) of all of it, and of the silence behind it that fills its first window.
        seconds: How long it is.
        frames: Of a window.
        choices: How.
        tokens: Of the package.
        prompt: Tokens of the prompt.
        decode: Makes text of tokens.
        step: Seconds from one frame to the next.
        ends: Frames behind each piece of it, each of which is a window by itself; nothing where it is in one piece.
    """

    def __init__(
        self,
        features: Array,
        *,
        seconds: float,
        frames: int,
        choices: TranscriptionOptions,
        tokens: SpeechTokens,
        prompt: Sequence[int],
        decode: Decode,
        step: float,
        ends: Sequence[int] = (),
    ) -> None:
        self._features, self.seconds, self._longest = features, seconds, frames
        self._ends = ends
        self.choices, self._tokens, self._decode, self._step = choices, tokens, decode, step
        is_long = len(features) > frames or choices.word_timestamps
        self.tells_times = is_long if choices.timestamps is None else choices.timestamps
        #: Token of the language, once it is known.
        self.language: int | None = None
        self.segments: list[Segment] = []
        #: With their times, where those are asked for.
        self.words: list[TimedText] = []
        #: What was said, as tokens without times.
        self.said: list[int] = []
        self._prompt = tuple(prompt)
        self._earlier = [*prompt]  # tokens that a window may begin with
        self._at = 0  # frames
        self._conditions = choices.condition_on_previous
        self._samplers = [Sampler(one, ()) for one in choices.samplings]

    def __len__(self) -> int:
        return len(self._features)

    @property
    def nbytes(self) -> int:
        """Memory of its features."""
        return self._features.nbytes

    @property
    def in_pieces(self) -> bool:
        """Whether it was cut before anything was heard."""
        return bool(self._ends)

    @property
    def _frames(self) -> int:
        """Of the next window."""
        return next((end - self._at for end in self._ends if end > self._at), self._longest)

    @property
    def needs_language(self) -> bool:
        """Whether the language has to be detected first."""
        choices = self.choices
        return self.language is None and self._tokens.needs_language(choices.language, choices.task)

    @property
    def ended(self) -> bool:
        """Whether nothing is left but silence that was added."""
        return self._at * self._step >= self.seconds or self._at >= len(self._features)

    def input(self) -> Array:
        """Return the features of the next window, (frames, bins)."""
        part = self._features[self._at : self._at + self._frames]
        padding = np.zeros((self._frames - len(part), *part.shape[1:]), part.dtype)
        return np.concatenate([part, padding]) if len(padding) else part

    def begin(self, ctx_len: int) -> Window:
        """Return what the next window begins with.

        Args:
            ctx_len: Tokens that it may have in all.
        """
        tokens, choices = self._tokens, self.choices
        begun = tokens.beginning(
            self.language, choices.task, times=self.tells_times, target=choices.target_language
        )
        most = min(tokens.positions, ctx_len) // 2 - 1
        earlier = self._earlier if self._conditions else self._prompt
        if earlier and tokens.before is not None:
            begun = (tokens.before, *earlier[-most:], *begun)
        longest = ctx_len
        if tokens.longest is not None:
            # Whisper's own `generate` does not count what an answer is begun with.
            more = 0 if tokens.no_times is None else min(most, len(begun))
            longest = min(ctx_len, tokens.longest + more)
        limit = longest - len(begun)
        if choices.generation_len is not None:
            limit = min(choices.generation_len, ctx_len - len(begun))
        return Window(begun=begun, limit=limit)

    def extend(self, window: Window, logits: Array) -> bool:
        """Choose the next token of a window; return whether it goes on.

        Args:
            window: Of this recording.
            logits: (vocab,), after its newest token.
        """
        if not window.answer and window.no_speech_prob is None:
            window.no_speech_prob = self._tokens.silence(logits)
        scores = self._tokens.allowed(logits, window.answer, times=self.tells_times)
        token = self._samplers[window.attempt].next(scores)
        scores -= scores.max()
        chosen = scores[token]
        window.logprob += float(chosen - np.log(np.exp(scores, out=scores).sum()))
        window.answer.append(token)
        window.vocab = len(logits)
        return token != self._tokens.end and len(window.answer) < window.limit

    def again(self, window: Window) -> bool:
        """Begin a window again where what was said in it looks wrong, and the next temperature is left to try.

        Args:
            window: That has ended.

        Returns:
            Whether it was begun again, from what the decoder has of it.
        """
        if window.attempt + 1 == len(self._samplers) or self._is_silence(window):
            return False
        doubted = self.choices.doubts(
            window.answer, vocab=window.vocab, avg_logprob=window.avg_logprob
        )
        if doubted:
            window.attempt += 1
            window.answer, window.logprob = [], 0.0
        return doubted

    def _is_silence(self, window: Window) -> bool:
        return self.choices.leaves_out(
            avg_logprob=window.avg_logprob, no_speech_prob=window.no_speech_prob
        )

    @property
    def heard(self) -> int:
        """Frames of the window that are of the recording, and not of silence that was added."""
        frames = min(math.ceil(round(self.seconds / self._step, 6)), len(self._features))
        return min(frames - self._at, self._frames)

    def end(self, window: Window, times: Sequence[float] = ()) -> list[Segment]:
        """Take what was said in a window; return its segments, of what is likely silence none.

        Args:
            window: That has ended.
            times: When each token but the last begins, in seconds of the window; nothing where words have no times.
        """
        answer = window.answer
        temperature = self.choices.samplings[window.attempt].temperature
        self._conditions = self.choices.condition_on_previous and temperature < _HOT
        if answer[-1] == self._tokens.end:
            answer = answer[:-1]
        frames = min(len(self._features) - self._at, self._frames)
        if self._is_silence(window):
            self._at += frames
            return []
        pieces, forward = cut(
            answer,
            first=self._tokens.first_time,
            ticks=int(frames * self._step / TICK),
            frames=frames,
            stride=round(TICK / self._step),
        )
        if self._tokens.first_time is None:  # all of it, and not to a whole tick
            is_last = self._at + frames == len(self._features)
            pieces = [(0, (self.seconds if is_last else frames * self._step) / TICK, answer)]
        offset = self._at * self._step
        ratio = compression(self._decode(self._texts(answer)).encode())
        found, place = [], 0
        for start, end, tokens in pieces:
            if times:
                self.words += self._words(tokens, place, times, offset)
            place += len(tokens)
            self.said += self._texts(tokens)
            self._earlier += _unpaired(tokens, self._tokens.first_time)
            segment = Segment(
                text=self._decode(self._texts(tokens)).strip(),
                start=min(offset + start * TICK, self.seconds),
                end=min(offset + end * TICK, self.seconds),
                tokens=tuple(tokens),
                avg_logprob=window.avg_logprob,
                temperature=temperature,
                compression_ratio=ratio,
                no_speech_prob=window.no_speech_prob,
            )
            found.append(segment)
        self._at += forward
        self.segments += found
        return found

    def _words(
        self, tokens: Sequence[int], place: int, times: Sequence[float], offset: float
    ) -> list[TimedText]:
        """Return the words of a segment.

        Args:
            tokens: Of it.
            place: Of the first of them in the window.
            times: As of `end`.
            offset: Of the window, in seconds.
        """
        begins = [round(offset + one, _DIGITS) for one in (*times, times[-1])]
        first = self._tokens.first_time
        said = [(at, one) for at, one in enumerate(tokens, place) if first is None or one < first]
        spans = [(begins[at - 1] if at else offset, begins[at]) for at, _ in said]
        language = None if self.choices.translates else self._tokens.code_of(self.language)
        return words_of([one for _, one in said], spans, self._decode, language)

    def _texts(self, tokens: Sequence[int]) -> list[int]:
        first = self._tokens.first_time
        return [token for token in tokens if first is None or token < first]


def cut(
    answer: Sequence[int], *, first: int | None, ticks: int, frames: int, stride: int
) -> tuple[list[tuple[int, float, Sequence[int]]], int]:
    """Cut what was said in a window where one time follows another.

    Args:
        answer: Tokens, without that which ends it.
        first: Token of time 0; None without times.
        ticks: Of the window.
        frames: Of the window.
        stride: Frames of a tick.

    Returns:
        Start and end in ticks from the window's beginning, and tokens, of each segment; and by how many frames the
        next window begins later.
    """
    times = [first is not None and token >= first for token in answer]
    ends = [place + 1 for place in range(len(times) - 1) if times[place] and times[place + 1]]
    base = first or 0
    if not ends:
        # Of a single time, the latest counts.
        told = [token - base for token, is_time in zip(answer, times, strict=True) if is_time]
        return [(0, told[-1] if told and told[-1] else ticks, answer)], frames
    said_last = times[-2:] == [False, True]  # nothing was said after it
    if said_last:
        ends.append(len(answer))
    else:
        ends[-1] += 1  # the time at which the next segment begins, which is not heard to its end
    pieces: list[tuple[int, float, Sequence[int]]] = []
    begun = 0
    for place, end in enumerate(ends):
        part = answer[begun:end]
        closes = -1 if place < len(ends) - 1 or said_last else -2
        pieces.append((part[0] - base, part[closes] - base, part))
        begun = end
    forward = frames if said_last else (answer[begun - 2] - base) * stride
    return pieces, forward


def _unpaired(tokens: Sequence[int], first: int | None) -> Sequence[int]:
    """Leave out the second of two times at the end of a segment."""
    paired = first is not None and len(tokens) > 2 and tokens[-2] >= first
    return tokens[:-1] if paired else tokens
