# SPDX-License-Identifier: Apache-2.0
"""Reference for image encoders: embeddings and logits of labels from transformers' models.

Only the reference process imports this.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from qeff_zoo import contract
from qeff_zoo.validation.reference.media import processor_of
from qeff_zoo.validation.reference.runs import Answers, tick
from qeff_zoo.validation.trial.sample_images import draw

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class ImageReference(Answers):
    """Outputs for images, which transformers' own processor converts to arrays.

    Args:
        model: Hugging Face model.
        request: Request with `checkpoint`, `task`, `sequences` as in `sample_images.draw`, and in `settings` the
            options that differ from the model's; and `texts` to match with the images.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._texts, halves = request.get("texts") or [], [getattr(model, "vision_model", model)]
        halves += [model.text_model] if self._texts else []
        super().__init__([*request["sequences"], *self._texts], *halves)
        self._count = len(request["sequences"])
        self._model, self._settings = model, request["settings"]
        self._embeds = contract.find(request["task"]).embeds
        self._process = processor_of(request)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        texts = {
            number: self._read(self._sequences[number])
            for number in numbers
            if number >= self._count
        }
        if shown := [number for number in numbers if number < self._count]:
            texts.update(zip(shown, self._look(shown), strict=True))
        return [texts[number] for number in numbers]

    def _read(self, text: Sequence[int]) -> Array:
        """Return the normalized embedding of a text, (1, width), padded to the positions of the model."""
        config = self._model.config.text_config
        tokens = torch.full((1, config.max_position_embeddings), config.pad_token_id or 0)
        tokens[0, : len(text)] = torch.tensor(text)
        embedding = nn.functional.normalize(
            self._model.get_text_features(input_ids=tokens).pooler_output
        )
        tick()
        return np.asarray(embedding.float().numpy())

    def _look(self, numbers: list[int]) -> list[Array]:
        """Return the embeddings or logits of images, (1, width) each."""
        images = [Image.fromarray(draw(*self._sequences[number])) for number in numbers]
        pixels = self._process(images=images, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(next(self._model.parameters()).dtype)
        outputs = self._embed(pixels) if self._embeds else self._model(pixel_values=pixels).logits
        tick()
        return list(outputs.float().numpy()[:, None])

    def _each(self, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield what transformers' processor returns for each image alone, in the type of the model."""
        dtype = next(self._model.parameters()).dtype
        for number in numbers:
            image = Image.fromarray(draw(*self._sequences[number]))
            options = self._options(image)
            yield self._process(images=[image], return_tensors="pt", **options).to(dtype)
            tick()

    def _options(self, image: Image.Image) -> dict[str, Any]:
        """Return options of the processor for an image."""
        return {}

    def _embed(self, pixels: Tensor) -> Tensor:
        """Return the pooled states of images, (images, width), normalized by the settings."""
        both = hasattr(self._model, "get_image_features")
        call = self._model.get_image_features if both else self._model
        output = call(pixel_values=pixels)
        states = output.last_hidden_state
        if states.dim() > 3:
            states = states.reshape(*states.shape[:2], -1).permute(0, 2, 1)
        by_mode: dict[str | None, Callable[[], Tensor]] = {
            None: lambda: output.pooler_output.reshape(len(pixels), -1),
            "cls": lambda: states[:, 0],
            "max": lambda: states.max(1).values,
            "mean": lambda: states.sum(1) / states.shape[1],
        }
        pooled = by_mode[self._settings.get("pooling")]()
        length = torch.linalg.vector_norm(pooled, dim=1, keepdim=True)
        return pooled / length if self._texts or self._settings.get("normalize") else pooled
