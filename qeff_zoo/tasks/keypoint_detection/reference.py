# SPDX-License-Identifier: Apache-2.0
"""transformers' models that find keypoints: heat maps of whole images.

Only the reference process imports this.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image

from qeff_zoo.tasks.images.reference import ImageReference

Array = np.ndarray[Any, np.dtype[Any]]


class KeypointReference(ImageReference):
    """Heat maps of images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        maps = []
        experts = self._model.config.backbone_config.num_experts
        others = {"dataset_index": torch.tensor([0])} if experts > 1 else {}
        for inputs in self._each(numbers):
            heatmaps = self._model(pixel_values=inputs["pixel_values"], **others).heatmaps
            maps.append(heatmaps.flatten(1).float().numpy())
        return maps

    def _options(self, image: Image.Image) -> dict[str, Any]:
        """Return the box of the whole image."""
        return {"boxes": [[[0, 0, image.width, image.height]]]}
