# SPDX-License-Identifier: Apache-2.0
"""transformers' models that classify recordings: logits of labels.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.speech.reference import CtcReference


class AudioReference(CtcReference):
    """Outputs for recordings: labels' logits of each, (1, labels).

    Args:
        model: Hugging Face model.
        request: Unused.
        arrays: Arrays `audio.number`, (samples,) or feature frames (frames, bins).
    """

    def _read(self, audio: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return super()._read(audio)[None]
