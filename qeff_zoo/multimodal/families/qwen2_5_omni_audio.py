# SPDX-License-Identifier: Apache-2.0
"""Audio of Qwen2.5-Omni: a stream padded to its maximum length, whose last frames the padding changes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.families.audio_stream import AudioStream

if TYPE_CHECKING:
    from qeff_zoo.media.features import Features
    from qeff_zoo.media.sound import Samples

#: Frames of silence behind a recording: those whose transforms overlap it, and as many as the last is reflected by.
_SILENCE = 4


@dataclass(frozen=True, kw_only=True)
class Qwen25OmniAudio(AudioStream):
    """Audio of at most the length of the feature extractor; `window` is half of a window."""

    window: str = "n_window"

    def frames(self, config: Any) -> int:
        """As of `AudioWindows`."""
        return 2 * super().frames(config)

    def compute(self, features: "Features", samples: "Samples") -> Any:
        """Compute the features of a recording with as much silence behind it as the last frames overlap."""
        import numpy as np

        features.check_length(samples, features.most)
        count = -(-len(samples) // features.step)
        whole = np.zeros(min(features.most, (count + _SILENCE) * features.step), np.float32)
        whole[: len(samples)] = samples
        return features.compute(whole)[:count]
