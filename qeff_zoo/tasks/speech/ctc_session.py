# SPDX-License-Identifier: Apache-2.0
"""Session of a CTC package: recordings in, text with times out.

A recording beyond the package's longest length is transcribed in windows. A sixth of each window at either end overlaps
its neighbours, which provide the labels there, as with `chunk_length_s` in Hugging Face's pipeline.
"""

import math
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract import SPEECH_RECOGNITION
from qeff_zoo.errors import GenerationError
from qeff_zoo.media import features
from qeff_zoo.media.audio import (
    LIMITS,
    AudioLimits,
    AudioSource,
    OpenedAudio,
    Samples,
    decoding,
    open_audio,
)
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import EncoderSizes
from qeff_zoo.tasks.speech.speech_results import Segment, TimedText, Transcription, joined
from qeff_zoo.tasks.speech.speech_turns import InOrder, Turns

from . import ctc_decoding

_OVERLAP = 6  # of a window, this part at each end
_INPUTS = ("input_values", "input_features")


@dataclass(frozen=True)
class _Window:
    """A part of a recording, and the overlapping frames whose labels come from its neighbours."""

    samples: Samples
    left: int
    right: int


class LabelledRecording:
    """A recording whose frames are being labelled.

    Args:
        windows: Windows in order.
        seconds: Duration of the recording.
        nbytes: Memory of its samples.
    """

    def __init__(self, windows: Iterable[_Window], seconds: float, nbytes: int) -> None:
        self.seconds, self.nbytes = seconds, nbytes
        #: Windows without labels so far, and labels of the frames before them.
        self.windows, self.labels = deque(windows), list[int]()

    @property
    def ended(self) -> bool:
        """Whether all windows have labels."""
        return not self.windows


class CtcSession:
    """An opened CTC package of the task `automatic-speech-recognition`.

    Args:
        folder: The package.
        program: Opened program of the package.

    Raises:
        GenerationError: The package is of another task.
        PackageError: The settings of the package are unknown, or damaged.

    Example:
        >>> session = qeff_zoo.load("packages/wav2vec2-base-960h")  # doctest: +SKIP
        >>> session.transcribe("speech.wav")[0].text  # doctest: +SKIP
        'A MAN SAID TO THE UNIVERSE SIR I EXIST'
    """

    task = SPEECH_RECOGNITION
    #: Whether it transcribes token by token, and which parts of a transcription have times.
    generates, has_word_timestamps, has_segment_timestamps = False, True, False

    def __init__(self, folder: Path, program: Program) -> None:
        require(program, folder, self.task, {"attention_mask"}, {"logits", "lengths"})
        self.folder, self._program = folder, program
        self.sizes = EncoderSizes.read(program.specializations)
        self.config = read_json(folder / "config.json")
        self.features = features.load_features(folder)
        self.labels = ctc_decoding.find(folder)
        #: Input of the graph: samples, or feature frames.
        self.input_name = input_of(program)
        #: Samples from one labelled frame to the next.
        self.step: int = self.features.step * math.prod(_strides(self.config))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Values of a feature frame; empty for samples."""
        return tuple(map(int, self._program.inputs[self.input_name].shape[2:]))

    @property
    def rate(self) -> int:
        """Sampling rate of the model, in samples per second."""
        return self.features.rate

    @property
    def frames(self) -> int:
        """Samples or feature frames of the longest window."""
        return self.sizes.seq_lens[-1]

    def run(self, rows: Sequence[Array], seq_len: int | None = None) -> list[Array]:
        """Run one call.

        Args:
            rows: At most `batch_size` inputs: (samples,), or feature frames (frames, bins).
            seq_len: Sequence length of the package; None for the shortest that fits all rows.

        Returns:
            float32, (frames, labels) of each row: only the frames without padding.
        """
        seq_len = seq_len or self.sizes.covering(max(map(len, rows)))
        audio, mask = filled(rows, self.sizes.batch_size, seq_len)
        outputs = self._program.run({self.input_name: audio, "attention_mask": mask})
        return [
            outputs["logits"][row, : max(0, int(outputs["lengths"][row]))].astype(
                np.float32, copy=False
            )
            for row in range(len(rows))
        ]

    def transcribe(
        self,
        audio: AudioSource | Sequence[AudioSource],
        *,
        rate: int | None = None,
        limits: AudioLimits = LIMITS,
    ) -> list[Transcription]:
        """Transcribe recordings.

        Args:
            audio: Paths, bytes of files or arrays, see `qeff_zoo.media.audio.read_audio`; one or several.
            rate: Samples a second of arrays; None where they have the model's.
            limits: Maximum length of each.

        Raises:
            MediaError: A recording cannot be read.
            GenerationError: The package has no vocabulary.
        """
        self._check_labels()
        alone = isinstance(audio, str | os.PathLike | bytes | np.ndarray)
        given: Any = [audio] if alone else audio
        opened = (open_audio(one, self.rate, given_rate=rate, limits=limits) for one in given)
        recordings = [finished(self.begin(one)) for one in opened]
        for _ in self.windows(InOrder(recordings)):
            pass
        return [self.transcription(recording) for recording in recordings]

    def _check_labels(self) -> None:
        if self.labels is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no vocabulary, neither vocab.json nor tokenizer.json; expected one. "
                "Build it from a checkpoint with its tokenizer."
            )

    def begin(self, audio: OpenedAudio) -> Steps[LabelledRecording]:
        """Decode a recording, in steps. Thread-safe.

        Raises:
            MediaError: The recording is damaged.
            GenerationError: The package has no vocabulary.
        """
        self._check_labels()
        samples = yield from decoding(audio, self.rate)
        return LabelledRecording(self._windows(samples), len(samples) / self.rate, samples.nbytes)

    def windows(
        self, turns: Turns[LabelledRecording]
    ) -> Generator[tuple[LabelledRecording, list[Segment]], None, None]:
        """Label recordings, one call at a time.

        Args:
            turns: Queue that selects the recording of the next windows.

        Yields:
            The recording of each call, and its segments after its last window.
        """
        while True:
            taken = list[LabelledRecording]()
            together = list[tuple[LabelledRecording, _Window]]()
            while len(together) < self.sizes.batch_size and (one := turns.take()) is not None:
                taken.append(one)
                while one.windows and len(together) < self.sizes.batch_size:
                    together.append((one, one.windows.popleft()))
            if not taken:
                return
            inputs = [self.features.compute(window.samples) for _, window in together]
            answers = self.run(inputs) if inputs else []
            for (one, window), logits in zip(together, answers, strict=True):
                stop = self._frames(window.samples) - window.right if window.right else None
                one.labels += logits.argmax(-1)[window.left : stop].tolist()
            for one in taken:
                yield one, [*self.transcription(one).segments] if one.ended else []
                if not one.ended:
                    turns.put(one)

    def _windows(self, samples: Samples) -> Iterator[_Window]:
        """Cut a recording into windows; a recording too short for a single input has no window, and no word."""
        longest = self.features.samples(self.frames)
        if len(samples) <= longest:
            if self.features.count(len(samples)) > 0:
                yield _Window(samples, 0, 0)
            return
        width = longest // self.step
        overlap = width // _OVERLAP
        for start in range(0, len(samples), (width - 2 * overlap) * self.step):
            part = samples[start : start + width * self.step]
            is_last = start + width * self.step >= len(samples)
            if self.features.count(len(part)) > 0 and self._frames(part) > overlap * (start > 0):
                yield _Window(part, overlap if start else 0, 0 if is_last else overlap)
            if is_last:
                return

    def _frames(self, samples: Samples) -> int:
        return round(len(samples) / self.step)

    def transcription(self, recording: LabelledRecording) -> Transcription:
        """Return the transcription of a recording whose windows all have labels."""
        assert self.labels is not None
        text, spans = self.labels.read(recording.labels)
        frame = self.step / self.rate
        words = [
            TimedText(text=one.text, start=one.start * frame, end=one.end * frame) for one in spans
        ]
        return Transcription(
            text=text,
            words=tuple(words),
            segments=tuple(joined(words)),
            seconds=recording.seconds,
        )


def input_of(program: Program) -> str:
    """Return the name of a program's audio input."""
    return next(name for name in _INPUTS if name in program.inputs)


def filled(rows: Sequence[Array], batch_size: int, seq_len: int) -> tuple[Array, Array]:
    """Return inputs padded to a call's shape, and their mask.

    Args:
        rows: At most `batch_size` inputs: (samples,), or (frames, bins) of features.
        batch_size: Rows of the call; those to spare repeat the first.
        seq_len: Number of inputs of a row.
    """
    audio = np.zeros((batch_size, seq_len, *rows[0].shape[1:]), np.float32)
    mask = np.zeros((batch_size, seq_len), np.int64)
    for row in range(batch_size):
        given = rows[row if row < len(rows) else 0]
        audio[row, : len(given)] = given
        mask[row, : len(given)] = 1
    return audio, mask


def _strides(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the strides before the encoder, whose product shortens its input."""
    encoder = config.get("encoder_config", {})
    if "subsampling_factor" in encoder:
        return (encoder["subsampling_factor"],)
    if halved := encoder.get("subsample_layers"):
        return (2,) * len(halved)
    # LASR has two such convolutions, and no more.
    return config.get("conv_stride") or (encoder.get("subsampling_conv_stride", 1),) * 2
