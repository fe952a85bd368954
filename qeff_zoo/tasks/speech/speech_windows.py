# SPDX-License-Identifier: Apache-2.0
"""State of a recording during its transcription: windows in, segments with times out.

A window starts at the end of the previous window's last segment, as in transformers' `generate` for long recordings. An
unfinished segment of a window is transcribed again in the next.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qeff_zoo.runtime.decoding.logits_processors import LogitsProcessors
from qeff_zoo.runtime.decoding.sampling import Sampler
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.speech.speech_results import Segment, TimedText
from qeff_zoo.tasks.speech.speech_tokens import TICK, SpeechTokens
from qeff_zoo.tasks.speech.transcription_options import TranscriptionOptions, compression
from qeff_zoo.tasks.speech.word_timestamps import words_of

#: Function from token ids to text.
Decode = Callable[[Sequence[int]], str]
_DIGITS = 2  # of seconds
_HOT = 0.5  # temperature from which text is not in the next prompt
_TIMES = re.compile(r"<\|\d+\.\d+\|>")


@dataclass(kw_only=True)
class Window:
    """Transcript of one window so far.

    Args:
        begun: Tokens of its prompt.
        limit: Maximum number of tokens to generate.
        no_speech_prob: Probability that it has no speech; None before its computation, or if the model does not predict
            it.
        attempt: Number of previous attempts.
        answer: Generated tokens.
        logprob: Sum of their natural log-probabilities.
        vocab: Size of the vocabulary; 0 before the first token.
        processors: Logits processors of this attempt.
    """

    begun: tuple[int, ...]
    limit: int
    no_speech_prob: float | None = None
    attempt: int = 0
    answer: list[int] = field(default_factory=list)
    logprob: float = 0.0
    vocab: int = 0
    processors: LogitsProcessors

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output."""
        return len(self.begun) + len(self.answer)

    @property
    def avg_logprob(self) -> float:
        """Mean of the tokens' natural log-probabilities."""
        return self.logprob / len(self.answer)


class Recording:
    """A recording during its transcription.

    Args:
        features: Features (frames, bins) of the recording, with silence that fills its first window.
        seconds: Duration of the recording.
        frames: Number of frames of a window.
        choices: Transcription options.
        tokens: Special tokens of the package.
        prompt: Tokens of the prompt.
        decode: Function from tokens to text.
        step: Seconds per frame.
        ends: End frames of pieces that are a window each; empty for a recording in one piece.
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
        self.choices, self._tokens, self._step = choices, tokens, step
        # Without a known first timestamp, they are found in the text.
        self._decode: Decode = lambda some: _TIMES.sub("", decode(some))
        is_long = len(features) > frames or choices.word_timestamps
        self.has_timestamps = is_long if choices.timestamps is None else choices.timestamps
        #: Token of the language, after its detection.
        self.language: int | None = None
        self.segments: list[Segment] = []
        #: Words with their times, on request.
        self.words: list[TimedText] = []
        #: Tokens of the transcript, without timestamps.
        self.transcript: list[int] = []
        self._prompt = tuple(prompt)
        self._earlier = [*prompt]  # tokens that a window may begin with
        self._at = 0  # frames
        self._conditions = bool(choices.condition_on_previous)
        self._begun = list[int]()  # tokens of the prompt of each window
        self._is_detected = False
        self._samplers = [Sampler(sampling, ()) for sampling in choices.samplings]

    def __len__(self) -> int:
        return len(self._features)

    @property
    def text(self) -> str:
        """Text of the transcript so far."""
        return self._decode(self.transcript).strip()

    @property
    def nbytes(self) -> int:
        """Memory of its features."""
        return self._features.nbytes

    @property
    def in_pieces(self) -> bool:
        """Whether it was cut into pieces before the transcription."""
        return bool(self._ends)

    @property
    def _frames(self) -> int:
        """Number of frames of the next window."""
        return next((end - self._at for end in self._ends if end > self._at), self._longest)

    def detect(self, logits: Array) -> None:
        """Set the language.

        Args:
            logits: Logits (vocab,), after the first token of every output.
        """
        self.language, self._is_detected = self._tokens.detected(logits), True

    @property
    def needs_language(self) -> bool:
        """Whether the language must be detected first."""
        choices = self.choices
        return self.language is None and self._tokens.needs_language(choices.language, choices.task)

    @property
    def ended(self) -> bool:
        """Whether nothing but added silence is left."""
        return self._at * self._step >= self.seconds or self._at >= len(self._features)

    def input(self) -> Array:
        """Return the features of the next window, (frames, bins)."""
        part = self._features[self._at : self._at + self._frames]
        padding = np.zeros((self._frames - len(part), *part.shape[1:]), part.dtype)
        return np.concatenate([part, padding]) if len(padding) else part

    def begin(self, ctx_len: int) -> Window:
        """Start the next window, with its prompt.

        Args:
            ctx_len: Maximum number of tokens of prompt and output.
        """
        tokens, choices = self._tokens, self.choices
        begun = tokens.beginning(
            self.language,
            choices.task,
            times=self.has_timestamps,
            target=choices.target_language,
            detected=self._is_detected,
        )
        most = min(tokens.positions, ctx_len) // 2 - 1
        earlier = self._earlier if self._conditions else self._prompt
        if earlier and tokens.before is not None:
            begun = (tokens.before, *earlier[-most:], *begun)
        self._begun.append(len(begun))
        if choices.generation_len is None:
            limit = tokens.limit(self._begun, ctx_len)
        else:
            limit = min(choices.generation_len, ctx_len - len(begun))
        return Window(begun=begun, limit=limit, processors=tokens.processors(begun, limit))

    def extend(self, window: Window, logits: Array) -> bool:
        """Choose the next token of a window; return whether the window continues.

        Args:
            window: A window of this recording.
            logits: Logits (vocab,), after its newest token.
        """
        if not window.answer and window.no_speech_prob is None:
            window.no_speech_prob = self._tokens.silence(logits)
        scores = window.processors(logits)
        if self.has_timestamps:
            scores = self._tokens.timed(scores, window.answer)
        token = self._samplers[window.attempt].next(scores)
        window.processors.take(token)
        scores = scores - scores.max()
        chosen = scores[token]
        window.logprob += float(chosen - np.log(np.exp(scores, out=scores).sum()))
        window.answer.append(token)
        window.vocab = len(logits)
        return token != self._tokens.end and len(window.answer) < window.limit

    def again(self, window: Window) -> bool:
        """Restart a window whose transcript is doubtful, at the next temperature, if there is one.

        Args:
            window: A finished window.

        Returns:
            Whether it was restarted, from the existing decoder states.
        """
        if window.attempt + 1 == len(self._samplers) or self._is_silence(window):
            return False
        doubted = self.choices.doubts(
            window.answer, vocab=window.vocab, avg_logprob=window.avg_logprob
        )
        if doubted:
            window.attempt += 1
            window.answer, window.logprob = [], 0.0
            window.processors = self._tokens.processors(window.begun, window.limit)
        return doubted

    def _is_silence(self, window: Window) -> bool:
        return self.choices.leaves_out(
            avg_logprob=window.avg_logprob, no_speech_prob=window.no_speech_prob
        )

    @property
    def real_frames(self) -> int:
        """Number of the window's frames that belong to the recording, and not to added silence."""
        frames = min(math.ceil(round(self.seconds / self._step, 6)), len(self._features))
        return min(frames - self._at, self._frames)

    def end(self, window: Window, times: Sequence[float] = ()) -> list[Segment]:
        """Finish a window; return its segments, or none if it is likely silence.

        Args:
            window: A finished window.
            times: Starts of all tokens but the last, in seconds of the window; empty without word-level timestamps.
        """
        answer = window.answer
        temperature = self.choices.samplings[window.attempt].temperature
        self._conditions = bool(self.choices.condition_on_previous) and temperature < _HOT
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
        segments, index = [], 0
        for start, end, tokens in pieces:
            if times:
                self.words += self._words(tokens, index, times, offset)
            index += len(tokens)
            self.transcript += self._texts(tokens)
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
            segments.append(segment)
        self._at += forward
        self.segments += segments
        return segments

    def _words(
        self, tokens: Sequence[int], index: int, times: Sequence[float], offset: float
    ) -> list[TimedText]:
        """Return the words of a segment.

        Args:
            tokens: Tokens of the segment.
            index: Index of the first of them in the window.
            times: Starts of the window's tokens, see `end`.
            offset: Start of the window, in seconds.
        """
        begins = [round(offset + one, _DIGITS) for one in (*times, times[-1])]
        first = self._tokens.first_time
        text_tokens = [
            (at, token) for at, token in enumerate(tokens, index) if first is None or token < first
        ]
        spans = [(begins[at - 1] if at else offset, begins[at]) for at, _ in text_tokens]
        language = None if self.choices.translates else self._tokens.code_of(self.language)
        return words_of([one for _, one in text_tokens], spans, self._decode, language)

    def _texts(self, tokens: Sequence[int]) -> list[int]:
        first = self._tokens.first_time
        return [token for token in tokens if first is None or token < first]


def cut(
    answer: Sequence[int], *, first: int | None, ticks: int, frames: int, stride: int
) -> tuple[list[tuple[int, float, Sequence[int]]], int]:
    """Cut the transcript of a window between consecutive timestamps.

    Args:
        answer: Generated tokens, without the last token of the output.
        first: Token of timestamp 0; None without timestamps.
        ticks: Number of ticks of the window.
        frames: Number of frames of the window.
        stride: Number of frames per tick.

    Returns:
        Start and end in ticks from the window's beginning, and tokens, of each segment; and the number of frames to the
        start of the next window.
    """
    times = [first is not None and token >= first for token in answer]
    ends = [place + 1 for place in range(len(times) - 1) if times[place] and times[place + 1]]
    base = first or 0
    if not ends:
        # Without pairs, the latest timestamp counts.
        timestamps = [token - base for token, is_time in zip(answer, times, strict=True) if is_time]
        return [(0, timestamps[-1] if timestamps and timestamps[-1] else ticks, answer)], frames
    single_timestamp_ending = times[-2:] == [False, True]  # no text after it
    if single_timestamp_ending:
        ends.append(len(answer))
    else:
        ends[-1] += 1  # start of the next segment, which is incomplete
    pieces: list[tuple[int, float, Sequence[int]]] = []
    begun = 0
    for number, end in enumerate(ends):
        part = answer[begun:end]
        closes = -1 if number < len(ends) - 1 or single_timestamp_ending else -2
        # Text without requested timestamps may precede the first pair.
        pieces.append((max(part[0] - base, 0), part[closes] - base, part))
        begun = end
    forward = frames if single_timestamp_ending else (answer[begun - 2] - base) * stride
    return pieces, forward


def _unpaired(tokens: Sequence[int], first: int | None) -> Sequence[int]:
    """Omit the second of two timestamps at the end of a segment."""
    paired = first is not None and len(tokens) > 2 and tokens[-2] >= first
    return tokens[:-1] if paired else tokens
