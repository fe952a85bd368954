# SPDX-License-Identifier: Apache-2.0
"""Audio of any length in one sequence, whose windows do not attend to one another (Qwen3-ASR, Qwen3-Omni)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.families.audio_windows import AudioWindows

if TYPE_CHECKING:
    from qeff_zoo.media.audio import Samples
    from qeff_zoo.media.features import Features
    from qeff_zoo.multimodal.encoding.audio_encoder import AudioReader


@dataclass(frozen=True, kw_only=True)
class AudioStream(AudioWindows):
    """Audio of any length; the program reads one window at a time, and the last one is padded.

    Args:
        window: Field of the audio config with the frames of a window.
    """

    packed: ClassVar[bool] = True

    window: str = ""

    def frames(self, config: Any) -> int:
        """See `AudioWindows`."""
        return int(getattr(config, self.window))

    def encoder(self) -> "type[AudioReader]":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.encoding.audio_encoder import AudioStreamReader

        return AudioStreamReader

    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """See `AudioEncoder`."""
        import numpy as np

        logs = np.ascontiguousarray(self.compute(features, samples).T)[None]
        return {features.name: logs, self.mask: np.ones_like(logs[:, 0], np.int64)}

    def compute(self, features: "Features", samples: "Samples") -> Any:
        """Return the features of a recording, (frames, bins)."""
        return features.compute(samples)

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        for sample in super().samples(shape):
            features = sample[self.features].transpose(1, 0, 2)
            joined = features.reshape(1, features.shape[0], -1)
            yield {self.features: joined, self.mask: sample[self.mask].reshape(1, -1)}
