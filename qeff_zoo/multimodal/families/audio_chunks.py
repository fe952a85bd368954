# SPDX-License-Identifier: Apache-2.0
"""Audio of any length, whose encoder attends within chunks and to preceding frames (Gemma 4)."""

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

#: Lengths of random recordings, in chunks.
_LENGTHS = (0.7, 2.4, 1.0, 3.3)
#: The same for references that encode one recording at a time: recordings of a prompt have equal lengths.
SEPARATE_LENGTHS = (0.7, 0.7, 1.6, 2.0, 2.0, 0.4)


@dataclass(frozen=True, kw_only=True)
class AudioChunks(AudioEncoder):
    """Audio of any length in chunks.

    Args:
        chunk: Field of the audio config with the audio tokens of a chunk.

    Attributes:
        rows: Field of the config with the fixed number of audio tokens to which the forward pads a recording, if any.
    """

    any_length: ClassVar[str] = "recordings of any length"
    rows: ClassVar[str] = ""

    chunk: str = ""

    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.tracing import audio_chunk_tracing

        return audio_chunk_tracing.tracing(model, self)

    def encoder(self) -> "type[AudioReader]":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.encoding.audio_encoder import AudioChunkReader

        return AudioChunkReader

    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """See `AudioEncoder`."""
        import numpy as np

        features.check_length(samples, features.most)
        logs = features.compute(samples)[None]
        return {features.name: logs, self.mask: np.ones(logs.shape[:2], bool)}

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        frames, bins = shape
        lengths = SEPARATE_LENGTHS if self.separate else _LENGTHS
        return self._random([int(length * frames) for length in lengths], bins)

    def _random(self, lengths: Sequence[int], bins: int) -> Iterator[dict[str, Any]]:
        import numpy as np

        random = np.random.default_rng(0)
        for length in cycle(lengths):
            features = random.standard_normal((1, length, bins), np.float32)
            yield {self.features: features, self.mask: np.ones(features.shape[:2], bool)}
