# SPDX-License-Identifier: Apache-2.0
"""Audio in windows of one length, which the encoder reads one at a time (Qwen2-Audio, Audio Flamingo 3, GLM-ASR)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.recipe_media import AudioEncoder

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.media.audio import Samples
    from qeff_zoo.media.features import Features
    from qeff_zoo.multimodal.encoding.audio_encoder import AudioReader
    from qeff_zoo.multimodal.images import Images

#: Lengths of random recordings, in windows.
_LENGTHS = (0.7, 1.6, 1.0, 0.4)


@dataclass(frozen=True, kw_only=True)
class AudioWindows(AudioEncoder):
    """Audio in windows of one length; the last window is padded with silence.

    Args:
        windows: Maximum number of windows of a recording; 0 if only the prompt limits it.

    Attributes:
        times: Name of the model's method that returns the time of each audio token of each window, (windows, tokens) in
            seconds; empty if audio tokens have no times.
        packed: Whether the forward takes all windows of a recording as one sequence, and separates them by offsets.
        joined: Whether features are computed over the whole recording, whose maximum counts, and not per window.
    """

    times: ClassVar[str] = ""
    packed: ClassVar[bool] = False
    joined: ClassVar[bool] = False

    windows: int = 0

    def frames(self, config: Any) -> int:
        """Return the frames of a window from the audio config; 0 for the number of the encoder's positions."""
        return 0

    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.tracing import audio_encoder_tracing

        return audio_encoder_tracing.tracing(model, self)

    def encoder(self) -> "type[AudioReader]":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.encoding.audio_encoder import AudioReader

        return AudioReader

    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """See `AudioEncoder`."""
        import numpy as np

        frames = shape[1]
        width = frames * features.step
        windows = -(-len(samples) // width)
        features.check_length(samples, self.windows * width)
        whole = np.zeros(windows * width, np.float32)
        whole[: len(samples)] = samples
        parts = [whole] if self.joined else np.split(whole, windows)
        logs = np.concatenate([features.compute(part) for part in parts])
        logs = logs.reshape(windows, frames, -1).transpose(0, 2, 1)
        arrays = {features.name: np.ascontiguousarray(logs, np.float32)}
        if self.mask:
            real = np.arange(windows * frames) * features.step < len(samples)
            arrays[self.mask] = real.reshape(windows, frames).astype(np.int64)
        return arrays

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        import numpy as np

        random, (bins, frames) = np.random.default_rng(0), shape
        longest = self.windows or max(_LENGTHS)
        for length in cycle(_LENGTHS):
            windows = math.ceil(min(length, longest))
            inputs: dict[str, Any] = {
                self.features: random.standard_normal((windows, bins, frames), np.float32)
            }
            if self.mask:
                real = np.arange(windows * frames) < int(min(length, longest) * frames)
                inputs[self.mask] = real.reshape(windows, frames).astype(np.int64)
            yield inputs
