# SPDX-License-Identifier: Apache-2.0
"""Audio processor: samples in, input arrays of an audio-language model out, as in transformers' processors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.media.audio import Samples
from qeff_zoo.media.features import Features

if TYPE_CHECKING:
    from qeff_zoo.recipe_media import AudioEncoder


@dataclass(frozen=True)
class AudioProcessor:
    """Audio processor of a package.

    Args:
        features: Feature extractor of the checkpoint.
        shape: Shape of one window or block of the program's input.
        audio: AudioEncoder input of the model.
    """

    features: Features
    shape: Sequence[int]
    audio: "AudioEncoder"

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.features.rate

    def __call__(self, samples: Samples) -> dict[str, Any]:
        """Return the input arrays of a recording of one channel.

        Raises:
            MediaError: If the recording is too long.
        """
        return self.audio.prepare(self.features, self.shape, samples)
