# SPDX-License-Identifier: Apache-2.0
"""transformers' models that generate masks: the masks and the scores of prompts.

Only the reference process imports this.
"""

from typing import Any

import numpy as np
import torch

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.trial.points import evenly_spaced
from qeff_zoo.validation.trial.sample_prompts import SAMPLES

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 15


class MaskReference(ImageReference):
    """Masks and scores of prompts for images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def _look(self, numbers: list[int]) -> list[Array]:
        answers = []
        dtype = next(self._model.parameters()).dtype
        for shown in self._each(numbers):
            pixels = shown["pixel_values"]
            embeddings = self._model.get_image_embeddings(pixels)
            rows = []
            for points, box in SAMPLES:
                inputs = _inputs(points, box, pixels.shape[-1], dtype)
                every = [
                    self._model(image_embeddings=embeddings, multimask_output=several, **inputs)
                    for several in (False, True)
                ]
                masks = torch.cat([one.pred_masks for one in every], dim=2).flatten()
                scores = torch.cat([one.iou_scores for one in every], dim=2).flatten()
                values = masks[evenly_spaced(len(masks), _COUNT)].float().numpy()
                rows += [values, np.resize(scores.float().numpy(), _COUNT)]
            answers.append(np.stack(rows))
        return answers


def _inputs(points: Any, box: Any, side: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the arguments of a model for a prompt in shares of the image."""
    inputs = {}
    if points:
        coordinates = torch.tensor([[[point[:2] for point in points]]], dtype=torch.float64) * side
        inputs["input_points"] = coordinates.float().to(dtype)
        inputs["input_labels"] = torch.tensor([[[point[2] for point in points]]])
    if box:
        edges = torch.tensor([[box]], dtype=torch.float64) * side
        inputs["input_boxes"] = edges.float().to(dtype)
    return inputs
