# SPDX-License-Identifier: Apache-2.0
"""Audio of Granite Speech: any length; the encoder attends within blocks, the projector within windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.families.audio_chunks import SEPARATE_LENGTHS
from qeff_zoo.recipe_media import AudioEncoder

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.media.audio import Samples
    from qeff_zoo.media.features import Features
    from qeff_zoo.multimodal.encoding.audio_encoder import AudioReader
    from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class GraniteSpeechAudio(AudioEncoder):
    """Audio of any length in blocks.

    Args:
        block: Field of the audio config with the frames of a block, and attribute of the layers that attend within one.
    """

    separate: ClassVar[bool] = True
    text_messages: ClassVar[bool] = True

    block: str = "context_size"

    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.tracing import audio_block_tracing

        return audio_block_tracing.tracing(model, self)

    def encoder(self) -> "type[AudioReader]":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.encoding.audio_encoder import AudioBlockReader

        return AudioBlockReader

    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """See `AudioEncoder`."""
        return {features.name: features.compute(samples)[None]}

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        import numpy as np

        random, (frames, bins) = np.random.default_rng(0), shape
        for length in cycle(SEPARATE_LENGTHS):
            yield {
                self.features: random.standard_normal((1, int(length * frames), bins), np.float32)
            }
