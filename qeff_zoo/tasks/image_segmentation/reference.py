# SPDX-License-Identifier: Apache-2.0
"""transformers' models that segment images: logits of labels and of masks, in the model's own size.

Only the reference process imports this.
"""

from typing import Any

import numpy as np

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 15


class SegmentationReference(ImageReference):
    """Logits of images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        rows = []
        for inputs in self._each(numbers):
            outputs = self._model(**inputs)
            pair: tuple[Any, ...]
            if "masks_queries_logits" in outputs:
                pair = outputs.class_queries_logits, outputs.masks_queries_logits
            elif "pred_masks" in outputs:
                pair = outputs.logits, outputs.pred_masks
            else:
                pair = (outputs.logits,)
            *labels, maps = (one.float().flatten() for one in pair)
            points = maps[evenly_spaced(len(maps), _COUNT)].numpy()
            rows.append(np.stack([*(np.resize(label.numpy(), _COUNT) for label in labels), points]))
        return rows
