# SPDX-License-Identifier: Apache-2.0
"""Audio of Phi-4 multimodal: any length; the encoder merges frames to audio tokens and attends within spans."""

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

#: Array of the processor with the number of audio tokens of each recording.
ROWS = "audio_embed_sizes"
#: Lengths of random recordings, in frames; recordings of a prompt have equal lengths.
_LENGTHS = (39, 39, 70, 17, 17, 33)


@dataclass(frozen=True, kw_only=True)
class Phi4Audio(AudioEncoder):
    """Audio of any length in spans.

    Args:
        span: Number of audio tokens in a span.
    """

    features: ClassVar[str] = "audio_input_features"
    separate: ClassVar[bool] = True

    span: int = 500

    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.tracing import audio_span_tracing

        return audio_span_tracing.tracing(model, self, images)

    def encoder(self) -> "type[AudioReader]":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.encoding.audio_encoder import AudioSpanReader

        return AudioSpanReader

    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """See `AudioEncoder`."""
        return self._with_rows(features.compute(samples), shape[0])

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        import numpy as np

        random, (merged, bins) = np.random.default_rng(0), shape
        for length in cycle(_LENGTHS):
            yield self._with_rows(random.standard_normal((length, bins), np.float32), merged)

    def _with_rows(self, logs: Any, merged: int) -> dict[str, Any]:
        import numpy as np

        return {self.features: logs[None], ROWS: np.array([-(-len(logs) // merged)])}
