# SPDX-License-Identifier: Apache-2.0
"""Audio encoder program at runtime: the output of a feature extractor in, audio features out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.audio import decoding, open_audio
from qeff_zoo.media.audio_processor import AudioProcessor
from qeff_zoo.media.features import load_features
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.recipe_media import AudioEncoder
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.program import Array, Program

#: Prefix of the output with the features of audio in a prompt with images, for models that encode it differently.
BESIDE = "beside_pictures."
FEATURES, NUMBER = "input_features", "window_ids"
#: Inputs with the mask of audio in the last block, and with the frames of each window.
_REAL, _WINDOWS = "attention_mask", "window_index"
#: Window position without a frame, whose padding is attended to.
_ATTENDED_PADDING = -2


def _too_short() -> GenerationError:
    return GenerationError(
        "A recording is too short for a feature row; expected a twentieth of a second or more. Give a longer one."
    )


class AudioReader(Reader):
    """Audio encoder for `input_features`, (windows, bins, frames), with a mask of padding for some models."""

    kind = "audio"

    def __init__(
        self, program: Program, config: Mapping[str, Any], budget: int, audio: AudioEncoder
    ) -> None:
        super().__init__(program, config, budget)
        self.audio = audio

    @property
    def needed(self) -> tuple[str, ...]:
        """See `Reader`."""
        return (self.name,)

    @property
    def name(self) -> str:
        """Name of the audio features among a processor's arrays."""
        return self.audio.features

    @property
    def shape(self) -> tuple[int, ...]:
        """Bins and frames of a window, or frames and bins of a block."""
        return tuple(map(int, self.program.inputs[FEATURES].shape[1:]))

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        features, name = prepared[FEATURES], self.audio.mask
        if features.shape[1:] != self.shape or (name and name not in prepared):
            raise GenerationError(
                f"A recording has {FEATURES} of {features.shape} and {sorted(prepared)}; expected windows of "
                f"{self.shape}{f' and {name}' if name else ''}. Give what the checkpoint's own processor returns."
            )
        windows = [self._encode_part(prepared, number) for number in range(len(features))]
        rows = {key: np.concatenate([window[key] for window in windows]) for key in windows[0]}
        if not len(next(iter(rows.values()))):
            raise _too_short()
        return Encoded(digest=digest, features=rows, kind=self.kind)

    def _encode_part(self, prepared: Mapping[str, Array], number: int) -> dict[str, Array]:
        """Return the features of one window, which is encoded independently of the others."""
        window = {name: array[number : number + 1] for name, array in prepared.items()}
        window[FEATURES] = np.ascontiguousarray(window[FEATURES], np.float32)
        if NUMBER in self.program.inputs:
            window[NUMBER] = np.array([number])
        outputs = self._run(window)
        lengths = outputs.pop("lengths", None)
        stop = None if lengths is None else int(lengths[0])
        return {key: rows[:stop] for key, rows in outputs.items()}


class AudioStreamReader(AudioReader):
    """Encoder for audio of any length, (1, bins, frames), one window at a time."""

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        return super()._encode(digest, self._cut(prepared))

    def _cut(self, prepared: Mapping[str, Array]) -> dict[str, Array]:
        """Split audio, (1, bins, frames) with a mask, into windows with content, and pad the last."""
        (bins, frames), count = self.shape, prepared[FEATURES].shape[-1]
        mask = prepared.get(self.audio.mask)
        if prepared[FEATURES].shape != (1, bins, count) or mask is None or mask.shape != (1, count):
            return dict(prepared)
        arrays, windows = {}, -(-int(mask.sum()) // frames)
        for name in (FEATURES, self.audio.mask):
            array = prepared[name][..., : windows * frames]
            lacking = windows * frames - array.shape[-1]
            whole = np.pad(array[0], [(0, 0)] * (array.ndim - 2) + [(0, lacking)])
            arrays[name] = np.moveaxis(whole.reshape(*whole.shape[:-1], -1, frames), -2, 0)
        return arrays


class AudioBlockReader(AudioReader):
    """Encoder for audio of any length in one call: `input_features`, (1, frames, bins)."""

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        count, arguments = self._in_blocks(prepared)
        width = int(self.program.inputs[_WINDOWS].shape[1])
        index = np.arange(-(-count // width) * width)
        indices = np.where(index < count, index, -1).reshape(-1, width)
        return Encoded(
            digest=digest, features=self._run({**arguments, _WINDOWS: indices}), kind=self.kind
        )

    def _in_blocks(self, prepared: Mapping[str, Array]) -> tuple[int, dict[str, Array]]:
        """Return the number of audio frames, and the frames in blocks, the last of them padded."""
        name, (frames, bins) = self.name, self.shape
        features = prepared[name]
        if features.ndim != 3 or features.shape[0] != 1 or features.shape[2] != bins:
            raise GenerationError(
                f"A recording has {name} of {features.shape}; expected (1, frames, {bins}). Give what the checkpoint's "
                "own processor returns of one recording."
            )
        if not (count := features.shape[1]):
            raise _too_short()
        blocks = -(-count // frames)
        whole = np.zeros((blocks * frames, bins), np.float32)
        whole[:count] = features[0]
        real = (np.arange(blocks * frames) < count).astype(np.int64)
        return count, {
            FEATURES: whole.reshape(blocks, frames, bins),
            _REAL: real.reshape(blocks, frames),
        }


class AudioSpanReader(AudioBlockReader):
    """Encoder for audio of any length in one call, which merges frames into audio tokens: (1, frames, bins)."""

    audio: Any

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        _, arguments = self._in_blocks(prepared)
        rows, most = len(arguments[_REAL]), self.audio.span
        width = min(rows, most)
        index = np.arange(-(-rows // width) * width)
        # As in transformers, whose encoder attends to the padding of the last of several spans.
        indices = np.where(index < rows, index, _ATTENDED_PADDING).reshape(-1, width)
        outputs = self._run({**arguments, _WINDOWS: indices})
        features = {name: output[:rows] for name, output in outputs.items()}
        return Encoded(digest=digest, features=features, kind=self.kind)


class AudioChunkReader(AudioBlockReader):
    """Encoder for audio of any length in one call, which merges frames in chunks: (1, frames, bins).

    Or, for frames of samples, with one audio token per frame: (1, frames, samples).
    """

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        count = int(prepared[self.audio.mask].sum())  # frames after it are padding
        inputs = {self.name: prepared[self.name][:, :count]}
        count, arguments = self._in_blocks(inputs)
        outputs, filled = dict(self._run(arguments)), arguments[_REAL].size
        if (lengths := outputs.pop("lengths", None)) is not None:  # a fixed number of audio tokens
            self._check_rows(int(lengths[0]), *outputs.values())
            return Encoded(digest=digest, features=outputs, kind=self.kind)
        features = {
            name: rows[: -(-count // (filled // len(rows)))] for name, rows in outputs.items()
        }
        return Encoded(digest=digest, features=features, kind=self.kind)

    def _check_rows(self, count: int, rows: Array) -> None:
        if count > len(rows):
            raise GenerationError(
                f"A recording has {count} rows of features; expected at most {len(rows)}, the maximum of the model. "
                "Give a shorter one, or what the checkpoint's own processor returns of it."
            )


class AudioPreparer:
    """Audio preprocessing for the encoder of a package.

    Args:
        reader: Audio encoder of the package.
    """

    def __init__(self, reader: AudioReader) -> None:
        self._reader = reader
        self._processor: AudioProcessor | None = None

    def __call__(self, given: Any, folder: Path) -> Any:
        """Return the encoder inputs of an audio input.

        Args:
            given: A path, the bytes of a file, an array of samples at the model's rate, or the output of a processor;
                encoded audio is returned unchanged.
            folder: Folder of the package.

        Raises:
            MediaError: If the audio cannot be read, or is too long.
            PackageError: If the package has no settings for audio preprocessing.
        """
        return finished(self.steps(given, folder))

    def encoding(self, given: Any, folder: Path) -> Steps[Encoded]:
        """Preprocess and encode an audio input, in steps."""
        prepared = yield from self.steps(given, folder)
        yield
        return self._reader.look(prepared)

    def steps(self, given: Any, folder: Path) -> Steps[Any]:
        """Preprocess an audio input as a call does, in steps."""
        if isinstance(given, Mapping | Encoded):
            return given
        if self._processor is None:
            features = load_features(folder)
            self._processor = AudioProcessor(features, self._reader.shape, self._reader.audio)
        rate = self._processor.rate
        return self._processor((yield from decoding(open_audio(given, rate), rate)))
