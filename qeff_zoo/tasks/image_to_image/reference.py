# SPDX-License-Identifier: Apache-2.0
"""transformers' models that return images: colors, with the padding of the processor.

Only the reference process imports this.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.reference.runs import tick
from qeff_zoo.validation.trial.sample_images import draw

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
        for number in numbers:
            image = Image.fromarray(draw(*self._sequences[number]))
            pixels = self._process(images=[image], return_tensors="pt")["pixel_values"]
            pixels = pixels.to(next(self._model.parameters()).dtype)
            flat = self._model(pixel_values=pixels).reconstruction.flatten(1)
            places = torch.arange(_COUNT) * (flat.shape[1] - 1) // (_COUNT - 1)
            results.append(flat[:, places].float().numpy())
            tick()
        return results
