# SPDX-License-Identifier: Apache-2.0
"""Session of an audio classification package: recordings in, scores of labels out."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media import features
from qeff_zoo.media.audio import LIMITS, AudioLimits, AudioSource, read_audio
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import EncoderSizes
from qeff_zoo.tasks.audio_classification.task import NAME
from qeff_zoo.tasks.speech.ctc_session import filled, input_of


class AudioClassificationSession:
    """An opened package of the task `audio-classification`.

    Args:
        folder: The package.
        program: Opened program of the package.

    Raises:
        GenerationError: The package is of another task, or its labels do not fit the graph.
        PackageError: The settings of the package are unknown, or damaged.

    Example:
        >>> session = qeff_zoo.load("packages/wav2vec2-base-superb-ks")  # doctest: +SKIP
        >>> session.classify("word.wav")[0][0].label  # doctest: +SKIP
        'yes'
    """

    task = NAME

    def __init__(self, folder: Path, program: Program) -> None:
        require(program, folder, self.task, {"attention_mask"}, {"logits"})
        self.folder, self._program = folder, program
        self.sizes = EncoderSizes.read(program.specializations)
        self.config = read_json(folder / "config.json")
        self.features = features.load_features(folder)
        #: Input of the graph: samples, or feature frames.
        self.input_name = input_of(program)
        count = int(program.outputs["logits"].shape[-1])
        self.labels = labels.names_of(self.config, count)
        self._activation = labels.activation_of(self.config, count)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Values of a feature frame; empty for samples."""
        return tuple(map(int, self._program.inputs[self.input_name].shape[2:]))

    @property
    def rate(self) -> int:
        """Sampling rate of the model, in samples per second."""
        return self.features.rate

    def run(self, rows: Sequence[Array], seq_len: int | None = None) -> Array:
        """Run one call.

        Args:
            rows: At most `batch_size` inputs: (samples,), or feature frames (frames, bins).
            seq_len: Sequence length of the package; None for the shortest that fits all rows.

        Returns:
            float32, (rows, labels).
        """
        seq_len = seq_len or self.sizes.covering(max(map(len, rows)))
        audio, mask = filled(rows, self.sizes.batch_size, seq_len)
        logits = self._program.run({self.input_name: audio, "attention_mask": mask})["logits"]
        answers: Array = logits[: len(rows)].astype(np.float32, copy=False)
        return answers

    def classify(
        self,
        audio: AudioSource | Sequence[AudioSource],
        *,
        rate: int | None = None,
        limits: AudioLimits = LIMITS,
    ) -> list[tuple[labels.Score, ...]]:
        """Return the score of every label for each recording, the best first.

        Args:
            audio: Paths, bytes of files or arrays, see `qeff_zoo.media.audio.read_audio`; one or several.
            rate: Samples a second of arrays; None if they have the model's.
            limits: Bounds of each recording.

        Raises:
            MediaError: A recording is unreadable.
            GenerationError: A recording exceeds the lengths of the package, or is too short for the model.
        """
        alone = isinstance(audio, str | os.PathLike | bytes | np.ndarray)
        given: Any = [audio] if alone else audio
        rows = [
            self._features(read_audio(one, self.rate, given_rate=rate, limits=limits), number)
            for number, one in enumerate(given, 1)
        ]
        scores: list[tuple[labels.Score, ...]] = []
        for start in range(0, len(rows), self.sizes.batch_size):
            logits = self.run(rows[start : start + self.sizes.batch_size])
            scores += [labels.best_first(self.labels, self._activation(logit)) for logit in logits]
        return scores

    def _features(self, samples: Array, number: int) -> Array:
        """Return the program's input for a recording."""
        longest = self.features.samples(self.sizes.seq_lens[-1])
        least = self.features.samples(self.sizes.seq_lens[0]) // _PARTS
        if not least <= len(samples) <= longest:
            raise GenerationError(
                f"Recording {number} has {len(samples) / self.rate:.2f} s; expected {least / self.rate:.2f} s to "
                f"{longest / self.rate:.2f} s, since a recording is classified as a whole. Cut or pad it, or build the "
                "package with other --seq-lens."
            )
        return self.features.compute(samples)


#: Minimum length of a recording, as a fraction of the package's shortest length: validation covers this length.
_PARTS = 10
