# SPDX-License-Identifier: Apache-2.0
"""Session of a mask generation package: an image and prompts in, masks out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.families.sam import longest_edge
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource, read_image
from qeff_zoo.media.interpolation import resized_bands
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.tasks.images.session import ImageSession
from qeff_zoo.tasks.mask_generation.prompts import (
    GeneratedMask,
    MaskPrompt,
    check_prompts,
    tokens_of,
)
from qeff_zoo.tasks.mask_generation.task import NAME

_INPUTS = {"image_embeddings", "input_points", "input_labels"}


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """Embeddings of an image, for any number of prompts.

    Args:
        embeddings: Output of the image encoder, (1, hidden, rows, columns).
        size: Height and width of the image.
        scaled: Height and width of the resized image, without padding.
    """

    embeddings: Array
    size: tuple[int, int]
    scaled: tuple[int, int]


class MaskGenerationSession(ImageSession):
    """An opened package of the task `mask-generation`; see `ImageSession` for how to open it.

    Args:
        folder: The package.
        program: Opened image encoder of the package.
        encoder: Opened program of the package that reads prompts.
        **given: Arguments of `ImageSession`.

    Example:
        >>> session = qeff_zoo.load("packages/sam-vit-base")  # doctest: +SKIP
        >>> image = session.encode("car.png")  # doctest: +SKIP
        >>> session.segment(image, [MaskPrompt(points=[(400, 650)])])[0][
        ...     0
        ... ].mask.shape  # doctest: +SKIP
        (1764, 2646)
    """

    task = NAME
    output = "image_embeddings"

    def __init__(self, folder: Path, program: Program, *, encoder: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        require(encoder, folder, self.task, _INPUTS, {"pred_masks", "iou_scores"})
        self._encoder = encoder

    def encode(self, image: ImageSource, limits: ImageLimits = LIMITS) -> EncodedImage:
        """Encode an image once for any number of prompts.

        Args:
            image: Image, see `prepare`.
            limits: Limits of the image.

        Raises:
            MediaError: The image cannot be read, or exceeds a limit.
        """
        pixels = read_image(image, limits)
        height, width = pixels.shape[:2]
        embeddings = self.run(self.prepare([pixels], limits))
        scaled = longest_edge(pixels, self.processor.settings["size"]["longest_edge"])
        return EncodedImage(embeddings=embeddings, size=(height, width), scaled=scaled)

    def masks(self, embeddings: Array, points: Array, labels: Array) -> tuple[Array, Array]:
        """Run one call of prompts; return the logits of four masks of each, and their scores.

        Args:
            embeddings: Embeddings of one image, (1, hidden, rows, columns).
            points: Places of tokens in pixels of the processed image, (prompts, tokens, 2).
            labels: Labels of tokens, (prompts, tokens).
        """
        feeds = {"image_embeddings": embeddings, "input_points": points, "input_labels": labels}
        outputs = self._encoder.run(feeds)
        masks, scores = outputs["pred_masks"], outputs["iou_scores"]
        return masks.astype(np.float32, copy=False), scores.astype(np.float32, copy=False)

    def segment(
        self,
        image: EncodedImage | ImageSource,
        prompts: Sequence[MaskPrompt],
        *,
        several: bool = True,
    ) -> list[tuple[GeneratedMask, ...]]:
        """Return the masks of each prompt, in the order of transformers' model.

        Args:
            image: Encoded image, or an image, see `prepare`.
            prompts: Points or a box of each object.
            several: Whether a prompt has three masks, of a part, of an object and of a group; False for a single mask,
                which is better for several points.

        Raises:
            GenerationError: There are no prompts, one is wrong, or an output is not finite.
            MediaError: The image cannot be read, or exceeds a limit.
        """
        checked = check_prompts(prompts)
        encoded = image if isinstance(image, EncodedImage) else self.encode(image)
        scale = (encoded.scaled[1] / encoded.size[1], encoded.scaled[0] / encoded.size[0])
        generated = []
        for prompt in checked:
            points, labels = tokens_of(prompt, scale)
            masks, scores = self.masks(encoded.embeddings, points[None], labels[None])
            if not (np.isfinite(masks).all() and np.isfinite(scores).all()):
                raise GenerationError(
                    "The outputs of the model have numbers that are not finite; expected masks. Build the package with "
                    "other options, such as float32 weights."
                )
            chosen = slice(1, None) if several else slice(0, 1)
            whole = self._in_image(masks[0, chosen], encoded)
            generated.append(
                tuple(
                    GeneratedMask(mask=mask, score=float(score))
                    for mask, score in zip(whole, scores[0, chosen], strict=True)
                )
            )
        return generated

    def _in_image(self, masks: Array, encoded: EncodedImage) -> Array:
        """Return masks in the size of the image, bool, without the padding of the processed image."""
        side = (int(self.size[0]), int(self.size[1]))
        padded = np.concatenate([band.copy() for _, band in resized_bands(masks, *side)], axis=1)
        inner = np.ascontiguousarray(padded[:, : encoded.scaled[0], : encoded.scaled[1]])
        return np.concatenate([band > 0 for _, band in resized_bands(inner, *encoded.size)], axis=1)
