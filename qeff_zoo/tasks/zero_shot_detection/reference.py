# SPDX-License-Identifier: Apache-2.0
"""transformers' models that detect objects which texts name: logits of texts, and boxes; and embeddings of texts.

Only the reference process imports this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qeff_zoo.tasks.images.reference import ImageReference
from qeff_zoo.validation.reference.media import processor_of
from qeff_zoo.validation.reference.runs import Answers, tick

Array = np.ndarray[Any, np.dtype[Any]]


class ZeroShotDetectionReference(ImageReference):
    """Logits of all texts and boxes of images, which transformers' own processor converts to arrays; each image alone.

    Args:
        model: Hugging Face model.
        request: See `ImageReference`.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._texts: list[Sequence[int]] = request["texts"]
        halves = (model.base_model.vision_model, model.base_model.text_model)
        Answers.__init__(self, [*request["sequences"], *self._texts], *halves)
        self._count, self._model = len(request["sequences"]), model
        self._process = processor_of(request)
        vision, hidden = model.config.vision_config, model.config.text_config.hidden_size
        patches = (vision.image_size // vision.patch_size) ** 2
        #: Number of values of each row, which the values of shorter ones repeat to.
        self._width = max(patches * max(4, len(self._texts)), hidden)

    def _tokens(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        config = self._model.config.text_config
        tokens = torch.full((len(texts), config.max_position_embeddings), config.pad_token_id or 0)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = torch.tensor(text)
        return tokens

    def _read(self, text: Sequence[int]) -> Array:
        """Return the embedding of a text, (1, width)."""
        tokens = self._tokens([text])
        pooled = self._model.base_model.get_text_features(input_ids=tokens).pooler_output
        tick()
        embedding = torch.nn.functional.normalize(pooled).float().numpy()
        return np.resize(embedding, (1, self._width))

    def _look(self, numbers: list[int]) -> list[Array]:
        rows = []
        tokens = self._tokens(self._texts)
        for inputs in self._each(numbers):
            outputs = self._model(pixel_values=inputs["pixel_values"], input_ids=tokens)
            both = [one.float().numpy() for one in (outputs.logits, outputs.pred_boxes)]
            rows.append(np.stack([np.resize(one, self._width) for one in both]))
        return rows
