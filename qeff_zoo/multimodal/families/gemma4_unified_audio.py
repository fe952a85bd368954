# SPDX-License-Identifier: Apache-2.0
"""Audio of Gemma 4 without an encoder: a matrix projects each frame of samples to an audio token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.families.audio_chunks import AudioChunks

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.images import Images

#: Lengths of random recordings, in frames.
_LENGTHS = (2, 5, 1, 4)


@dataclass(frozen=True, kw_only=True)
class Gemma4UnifiedAudio(AudioChunks):
    """Audio as frames of samples; `chunk` is the field of the audio config with the samples of a frame."""

    chunk: str = "audio_embed_dim"

    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """See `AudioEncoder`."""
        from qeff_zoo.multimodal.tracing import audio_encoder_tracing

        return audio_encoder_tracing.tracing_of_samples(model, self)

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `AudioEncoder`."""
        return self._random(_LENGTHS, shape[1])
