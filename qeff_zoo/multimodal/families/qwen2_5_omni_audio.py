# SPDX-License-Identifier: Apache-2.0
"""Audio of Qwen2.5-Omni: a stream padded to its maximum length; the padding changes its last frames."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.families.audio_stream import AudioStream

if TYPE_CHECKING:
    from qeff_zoo.media.audio import Samples
    from qeff_zoo.media.features import Features

#: Frames of silence after a recording: those whose transforms overlap it, and those reflected at its end.
_SILENCE = 4


@dataclass(frozen=True, kw_only=True)
class Qwen25OmniAudio(AudioStream):
    """Audio of at most the feature extractor's length; `window` is the field with half a window's frames."""

    window: str = "n_window"

    def frames(self, config: Any) -> int:
        """See `AudioWindows`."""
        return 2 * super().frames(config)

    def compute(self, features: "Features", samples: "Samples") -> Any:
        """Return the features of a recording, padded with the silence that its last frames overlap."""
        import numpy as np

        features.check_length(samples, features.most)
        count = -(-len(samples) // features.step)
        whole = np.zeros(min(features.most, (count + _SILENCE) * features.step), np.float32)
        whole[: len(samples)] = samples
        return features.compute(whole)[:count]
