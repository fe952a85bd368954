# SPDX-License-Identifier: Apache-2.0
"""transformers' models that classify recordings: logits of labels.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.speech.reference import CtcReference


class AudioReference(CtcReference):
    """Answers about recordings: labels' logits of each, (1, labels).

    Args:
        model: Hugging Face's.
        request: Nothing here.
        arrays: `sound.number`, (samples,) or (frames, bins) of features.
    """

    def _read(self, sound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return super()._read(sound)[None]
