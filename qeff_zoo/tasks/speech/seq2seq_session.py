# SPDX-License-Identifier: Apache-2.0
"""Session of a speech-seq2seq package: recordings in, text with times out."""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract import SPEECH_SEQ2SEQ
from qeff_zoo.errors import GenerationError
from qeff_zoo.media import features
from qeff_zoo.media.audio import LIMITS, AudioLimits, AudioSource, OpenedAudio, open_audio
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.encoder_inputs import Sources
from qeff_zoo.runtime.decoding.sampling import likeliest
from qeff_zoo.runtime.engine.metrics import Timings
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.text.languages import code_of
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.tasks.speech.speech_openings import begun, recording_of
from qeff_zoo.tasks.speech.speech_results import Segment, Transcription
from qeff_zoo.tasks.speech.speech_tokens import TICK, SpeechTokens
from qeff_zoo.tasks.speech.speech_turns import InOrder, Turns
from qeff_zoo.tasks.speech.speech_windows import Recording, Window
from qeff_zoo.tasks.speech.transcription_options import TranscriptionOptions
from qeff_zoo.tasks.speech.word_timestamps import UNSPACED, times_of

_USUAL = TranscriptionOptions()
_MEDIAN = 7  # frames, unless config.json sets another width
_TOKENS = "input_ids"
_NOTHING: Mapping[int, int] = {}


@dataclass
class _Row:
    """A window in progress: its decoder state, and its next input tokens."""

    recording: Recording
    window: Window


class SpeechSeq2SeqSession:
    """An opened package of the task `speech-seq2seq`.

    Args:
        folder: The package.
        program: Opened decoder of the package.
        encoder: Opened encoder of the package.
        chosen: Value of `spec.task` in the manifest.
        alignment: Function that opens the alignment program; None for packages without it.

    Raises:
        GenerationError: The package is of another task, or its KV cache does not fit into memory.
        PackageError: The settings of the package are unknown, or damaged.

    Example:
        >>> session = qeff_zoo.load("packages/whisper-tiny")  # doctest: +SKIP
        >>> session.transcribe("speech.wav")[0].text  # doctest: +SKIP
        'A man said to the universe, Sir, I exist.'
    """

    task = SPEECH_SEQ2SEQ
    generates = True

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        encoder: Program,
        chosen: Mapping[str, Any],
        alignment: Callable[[], Program] | None = None,
    ) -> None:
        require(program, folder, self.task, {"input_ids", "position_ids"}, {"logits"})
        self.folder, self.decoder = folder, Decoder(program)
        self.sources = Sources(encoder, program.memory)
        self.features = features.load_features(folder)
        self.tokenizer = Tokenizer.find(folder)
        self.tokens = SpeechTokens.read(
            folder,
            chosen.get("speech"),
            self.tokenizer,
            windows=not self.sources.any_length,
            vocab_size=self.decoder.vocab_size,
        )
        self._open_alignment = alignment
        #: Timings of the last call.
        self.timings = Timings()
        self._in_use = threading.Lock()

    @property
    def rate(self) -> int:
        """Sampling rate of the model, in samples per second."""
        return self.features.rate

    @property
    def input_name(self) -> str:
        """Name of the encoder's audio input."""
        return self.sources.input_name

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Values of a feature frame; empty for samples."""
        return self.sources.shape[: len(self.sources.shape) - (not self.sources.any_length)]

    @property
    def frames(self) -> int:
        """Samples or feature frames of a window; for models of audio of any length, of the longest audio."""
        return self.sources.longest

    @property
    def has_segment_timestamps(self) -> bool:
        """Whether segments can have times."""
        return self.tokens.first_time is not None

    @property
    def has_word_timestamps(self) -> bool:
        """Whether words can have times."""
        return self._open_alignment is not None

    @property
    def seconds(self) -> float:
        """Duration of a window, or of the longest audio."""
        return self.frames * self.features.step / self.rate

    def listen(self, recordings: Mapping[int, Array]) -> None:
        """Encode audio, each into a batch slot of the decoder, whose next tokens depend on it alone.

        Args:
            recordings: Arrays by slot, (samples,) or (frames, bins); a whole window for models of windows.
        """
        inputs = {row: self.as_given(recording) for row, recording in recordings.items()}
        self.sources.read(inputs)

    def as_given(self, audio: Array) -> Array:
        """Return audio as the encoder takes it, which for windows is (bins, frames)."""
        return audio if self.sources.any_length else audio.T

    def generate(self, window: Array, prompt: Sequence[int], length: int) -> list[int]:
        """Continue tokens greedily, without the generation rules of speech.

        Args:
            window: Audio of one window, see `listen`.
            prompt: Token ids.
            length: Number of tokens to generate.
        """
        with self._exclusively():
            self.listen({0: window})
            tokens = [*prompt]
            logits = self._prefill({0: prompt})[0]
            for _ in range(length):
                tokens.append(likeliest(logits))
                if len(tokens) - len(prompt) < length:
                    logits = self.decoder.decode({0: self._piece(0, tokens[-1:], len(tokens) - 1)})[
                        0
                    ]
        return tokens[len(prompt) :]

    def transcribe(
        self,
        audio: AudioSource | Sequence[AudioSource],
        *,
        rate: int | None = None,
        limits: AudioLimits = LIMITS,
        choices: TranscriptionOptions = _USUAL,
        listen: Callable[[int, Segment], None] | None = None,
        **more: Any,
    ) -> list[Transcription]:
        """Transcribe recordings.

        Args:
            audio: Paths, bytes of files or arrays, see `qeff_zoo.media.audio.read_audio`; one or several.
            rate: Samples a second of arrays; None where they have the model's.
            limits: Maximum length of each.
            choices: Language, task, times and more.
            listen: Callback with the number of a recording and each of its segments at the segment's end.
            **more: Fields that replace those of `choices`.

        Raises:
            MediaError: A recording cannot be read.
            GenerationError: The model does not support an option, or another thread uses the session.
        """
        chosen = self._completed(replace(choices, **more))
        prompt = self._prepared(chosen)
        alone = isinstance(audio, str | os.PathLike | bytes | np.ndarray)
        given: Any = [audio] if alone else audio
        opened = (open_audio(one, self.rate, given_rate=rate, limits=limits) for one in given)
        recordings = (finished(recording_of(self, one, chosen, prompt)) for one in opened)
        return self._all(recordings, listen)

    def begin(self, audio: OpenedAudio, **choices: Any) -> Steps[Recording]:
        """Decode a recording and compute its features, in steps. Thread-safe.

        Args:
            audio: The recording.
            **choices: Fields of `TranscriptionOptions`.

        Raises:
            MediaError: The recording is damaged.
            GenerationError: The model does not support an option.
        """
        chosen = self._completed(TranscriptionOptions(**choices))
        return (yield from recording_of(self, audio, chosen, self._prepared(chosen)))

    def transcribe_features(
        self,
        features: Sequence[Array],
        *,
        choices: TranscriptionOptions = _USUAL,
        listen: Callable[[int, Segment], None] | None = None,
        **more: Any,
    ) -> list[Transcription]:
        """Transcribe recordings from their features.

        Args:
            features: Features of each recording, (frames, bins).
            choices: Language, task, times and more.
            listen: Callback for segments, see `transcribe`.
            **more: Fields that replace those of `choices`.

        Raises:
            GenerationError: The features have another shape, or an error of `transcribe`.
        """
        chosen = self._completed(replace(choices, **more))
        prompt = self._prepared(chosen)
        if wrong := [
            feature.shape for feature in features if feature.shape[1:] != self.input_shape
        ]:
            expected = f"(frames, {', '.join(map(str, self.input_shape))})"
            raise GenerationError(
                f"Features have shape {wrong[0]}; expected {expected if self.input_shape else '(samples,)'}. Compute "
                "them with the checkpoint's own feature extractor."
            )
        return self._all((begun(self, [feature], chosen, prompt) for feature in features), listen)

    def _all(
        self, recordings: Iterable[Recording], listen: Callable[[int, Segment], None] | None
    ) -> list[Transcription]:
        transcriptions: dict[int, Transcription] = {}
        turns = InOrder(recordings)
        with closing(self.windows(turns)) as windows:
            for recording, segments in windows:
                number = turns.number(recording)
                if listen:
                    for segment in segments:
                        listen(number, segment)
                if recording.ended:
                    transcriptions[number] = self.transcription(recording)
        return [transcriptions[number] for number in sorted(transcriptions)]

    def stream(
        self, audio: AudioSource, *, choices: TranscriptionOptions = _USUAL, **more: Any
    ) -> Iterator[Segment]:
        """Transcribe one recording, and yield each segment at its end. Closing the generator stops the transcription.

        Args:
            audio: See `transcribe`, also for the others.
            choices: Language, task, times and more.
            **more: Fields that replace those of `choices`; `rate` and `limits`.
        """
        known = {name: more.pop(name) for name in ("rate", "limits") if name in more}
        chosen = self._completed(replace(choices, **more))
        prompt = self._prepared(chosen)
        opened = open_audio(
            audio, self.rate, given_rate=known.get("rate"), limits=known.get("limits", LIMITS)
        )
        recording = finished(recording_of(self, opened, chosen, prompt))
        with closing(self.windows(InOrder([recording]))) as windows:
            for _, segments in windows:
                yield from segments

    @cached_property
    def _alignment(self) -> Program | None:
        """Alignment program, opened on first use."""
        return self._open_alignment() if self._open_alignment else None

    @cached_property
    def _smoothing(self) -> int:
        return int(read_json(self.folder / "config.json").get("median_filter_width", _MEDIAN))

    # --- options ---------------------------------------------------------------------------------

    def _completed(self, choices: TranscriptionOptions) -> TranscriptionOptions:
        """Return options with those that the package sets in place of missing ones."""
        usual = dict(self.tokens.usual)
        if choices.translates:
            usual.pop("task", None)
        left = {name: value for name, value in usual.items() if getattr(choices, name) is None}
        return replace(choices, **left)

    def _prepared(self, choices: TranscriptionOptions) -> list[int]:
        """Refuse unsupported options before any encoding; return the tokens of the prompt."""
        choices.check()
        if choices.word_timestamps and not self.has_word_timestamps:
            raise GenerationError(
                f"Package {str(self.folder)!r} returns no times of words; expected one with a program 'alignment', as "
                "those have whose checkpoint's generation_config.json has `alignment_heads`. Build it again, or ask "
                "for times of segments."
            )
        if choices.no_speech_threshold is not None and self.tokens.no_times is None:
            raise GenerationError(
                f"no_speech_threshold is {choices.no_speech_threshold}, and this model has no token for silence; "
                "expected one of Whisper's kind. Leave it out."
            )
        self.tokens.beginning(
            self.language_token(choices.language),
            choices.task,
            times=bool(choices.timestamps),
            target=choices.target_language,
        )
        if self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json; expected one, which makes text of tokens. Build "
                "it from a checkpoint with its tokenizer."
            )
        if not choices.prompt:
            return []
        if self.tokens.before is None:
            raise GenerationError(
                "This model takes no prompt: generation_config.json has no `prev_sot_token_id`. Leave the prompt out."
            )
        return self.tokenizer.encode(f" {choices.prompt.strip()}", special_tokens=False)

    def language_token(self, language: str | None) -> int | None:
        """Return the token of a requested language; a model of one language accepts English."""
        if language is None or (not self.tokens.languages and code_of(language) == "en"):
            return None
        return self.tokens.language_token(language)

    # --- transcription ---------------------------------------------------------------------------

    def windows(
        self, turns: Turns[Recording]
    ) -> Generator[tuple[Recording, list[Segment]], None, None]:
        """Transcribe recordings window by window, as many at a time as the decoder has batch slots.

        Args:
            turns: Queue that selects the recordings of the next windows.

        Yields:
            The recording and the segments of each finished window.

        Raises:
            GenerationError: Another thread uses the session.
        """
        rows: dict[int, _Row] = {}
        self.timings = timings = Timings()
        with self._exclusively():
            while True:
                fresh: dict[int, Recording] = {}
                for row in (row for row in range(self.decoder.sizes.rows) if row not in rows):
                    if (following := turns.take()) is not None:
                        fresh[row] = following
                if fresh:
                    rows |= self._begin(fresh)
                if not rows:
                    return
                begun_at = time.perf_counter()
                ended = self._decode(rows)
                timings.decode_seconds += time.perf_counter() - begun_at
                timings.decode_tokens += len(rows)
                timings.first = timings.first or time.perf_counter()
                for row in ended:
                    if rows[row].recording.again(rows[row].window):
                        continue  # from the newest token of its prompt, whose states remain
                    one = rows.pop(row)
                    yield one.recording, one.recording.end(one.window, self._times(row, one))
                    if not one.recording.ended:
                        turns.put(one.recording)

    def _begin(self, fresh: Mapping[int, Recording]) -> dict[int, _Row]:
        """Encode the next windows of recordings, and run their prompts."""
        self.listen({row: recording.input() for row, recording in fresh.items()})
        unknown = {row: value for row, value in fresh.items() if value.needs_language}
        if unknown:
            logits = self._prefill(dict.fromkeys(unknown, (self.tokens.start,)))
            for row, recording in unknown.items():
                recording.detect(logits[row])
        rows = {
            row: _Row(recording=recording, window=recording.begin(self.decoder.sizes.ctx_len))
            for row, recording in fresh.items()
        }
        self._prefill_windows({row: value.window for row, value in rows.items()})
        return rows

    def _prefill_windows(self, windows: Mapping[int, Window]) -> None:
        """Run all tokens but the newest, which the next step decodes together with those of other slots."""
        start = self.tokens.start
        earlier = {row: window.begun[:-1] for row, window in windows.items()}
        # First up to the token after which the model predicts the probability of speech.
        first = {
            row: tokens[: tokens.index(start) + 1]
            for row, tokens in earlier.items()
            if start in tokens
        }
        for row, logits in self._prefill(first).items():
            windows[row].no_speech_prob = self.tokens.silence(logits)
        past = {row: len(tokens) for row, tokens in first.items()}
        self._prefill({row: value[past.get(row, 0) :] for row, value in earlier.items()}, past)

    def _decode(self, rows: Mapping[int, _Row]) -> list[int]:
        """Decode one token in every slot; return the slots whose windows have ended."""
        pieces = {}
        for row, one in rows.items():
            window = one.window
            newest = window.answer[-1] if window.answer else window.begun[-1]
            pieces[row] = self._piece(row, [newest], window.length - 1)
        logits = self.decoder.decode(pieces)
        return [
            row
            for row, value in rows.items()
            if not value.recording.extend(value.window, logits[row])
        ]

    def _times(self, row: int, one: _Row) -> list[float]:
        """Return the start of each token of a window but the last; empty without word-level timestamps."""
        window, frames = (
            one.window,
            one.recording.real_frames // round(TICK * self.rate / self.features.step),
        )
        if not one.recording.choices.word_timestamps or self._alignment is None:
            return []
        tokens = [*window.begun, *window.answer[:-1]]
        if len(tokens) == len(window.begun):
            return []
        given = {
            name: self.decoder.states[name][row : row + 1]
            for name in self._alignment.inputs
            if name != _TOKENS
        }
        weights = self._alignment.run({_TOKENS: np.array([tokens], np.int64), **given})["weights"][
            0
        ]
        return times_of(weights[:, len(window.begun) :, : max(1, frames)], self._smoothing)

    def _prefill(
        self, prompts: Mapping[int, Sequence[int]], past: Mapping[int, int] = _NOTHING
    ) -> dict[int, Array]:
        """Run prompts in batch slots; return the logits after each.

        Args:
            prompts: Prompts by slot; one may be empty.
            past: Number of previous tokens by slot.
        """
        width, logits = self.decoder.sizes.prefill_seq_len, dict[int, Array]()
        for start in range(0, max(map(len, prompts.values()), default=0), width):
            logits |= self.decoder.prefill(
                {
                    row: self._piece(row, tokens[start : start + width], past.get(row, 0) + start)
                    for row, tokens in prompts.items()
                    if start < len(tokens)
                }
            )
        return logits

    def _piece(self, row: int, tokens: Sequence[int], start: int) -> Piece:
        return Piece(tokens, start, source=self.sources.lengths[row])

    def transcription(self, recording: Recording) -> Transcription:
        """Return the transcription of a finished recording."""
        language, text = self.tokens.code_of(recording.language), recording.text
        if recording.in_pieces:
            spoken = [segment.text for segment in recording.segments if segment.text]
            text = ("" if language in UNSPACED else " ").join(spoken)
        return Transcription(
            text=text,
            words=tuple(recording.words),
            segments=tuple(recording.segments),
            language=language,
            seconds=recording.seconds,
        )

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Restrict the session to one thread at a time."""
        if not self._in_use.acquire(blocking=False):
            raise GenerationError(
                f"The session of {str(self.folder)!r} is transcribing already; expected one call at a time. Wait for "
                "it, or give it all recordings at once."
            )
        try:
            yield
        finally:
            self._in_use.release()
