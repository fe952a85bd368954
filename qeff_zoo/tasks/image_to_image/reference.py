# SPDX-License-Identifier: Apache-2.0
"""transformers' models that return images: colors, with the padding of the processor.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 15


class ImageToImageReference(ImageReference):
    """Results for images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        results = []
        for inputs in self._each(numbers):
            flat = self._model(pixel_values=inputs["pixel_values"]).reconstruction.flatten(1)
            results.append(flat[:, evenly_spaced(flat.shape[1], _COUNT)].float().numpy())
        return results
