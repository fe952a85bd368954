# SPDX-License-Identifier: Apache-2.0
"""transformers' models that estimate depth: maps of depths, in the model's own size.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 15


class DepthReference(ImageReference):
    """Depths of images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        depths = []
        for inputs in self._each(numbers):
            depth = self._model(pixel_values=inputs["pixel_values"]).predicted_depth
            depths.append(
                depth.flatten(1)[:, evenly_spaced(depth[0].numel(), _COUNT)].float().numpy()
            )
        return depths
