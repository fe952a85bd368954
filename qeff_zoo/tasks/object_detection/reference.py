# SPDX-License-Identifier: Apache-2.0
"""transformers' models that detect objects: logits of labels, and boxes.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.images.reference import ImageReference

Array = np.ndarray[Any, np.dtype[Any]]


class DetectionReference(ImageReference):
    """Logits and boxes of images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        rows = []
        for inputs in self._each(numbers):
            outputs = self._model(**inputs)
            both = [one.float().numpy().ravel() for one in (outputs.logits, outputs.pred_boxes)]
            width = max(map(len, both))
            rows.append(np.stack([np.resize(one, width) for one in both]))
        return rows
