# SPDX-License-Identifier: Apache-2.0
"""Session of an image-to-image package: images in, images out."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.image_to_image.task import NAME
from qeff_zoo.tasks.images.session import ImageSession

_UPSCALE = 2  # default of the configuration


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Image that a model returns for an image.

    Args:
        pixels: uint8, (height, width, 3): those of the image times the factor of the model.
    """

    pixels: Array

    def as_png(self) -> bytes:
        """Return the image as a PNG file."""
        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()


class ImageToImageSession(ImageSession):
    """An opened package of the task `image-to-image`; see `ImageSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/swin2SR-classical-sr-x2-64")  # doctest: +SKIP
        >>> session.transform(["photo.jpg"])[0].pixels.shape  # doctest: +SKIP
        (960, 1280, 3)
    """

    task = NAME
    output = "reconstruction"

    def __init__(self, folder: Path, program: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        #: Factor from the sides of an image to those of its result.
        self.factor = int(self.config.get("upscale", _UPSCALE))

    def transform(
        self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> list[Reconstruction]:
        """Return an image for each image; adjacent images of one size share calls. See `prepare`.

        Raises:
            GenerationError: There are no images, or a result has values that are not finite.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        return [
            self.reconstruction_of(output, *size) for output, size in self.answers(images, limits)
        ]

    def reconstruction_of(self, output: Array, height: int, width: int) -> Reconstruction:
        """Return the result for an image from a row of `run`, without the padding of the processor.

        Args:
            output: Output of the graph, (3, rows, columns).
            height: Height of the image.
            width: Width of the image.

        Raises:
            GenerationError: The output has values that are not finite.
        """
        colors = output[:, : self.factor * height, : self.factor * width]
        if not np.isfinite(colors).all():
            raise GenerationError(
                "The output of the model has values that are not finite; expected colors. Build the package with other "
                "options, such as float32 weights."
            )
        levels = (np.clip(colors, 0, 1) * np.float32(255)).round().astype(np.uint8)
        return Reconstruction(pixels=np.ascontiguousarray(levels.transpose(1, 2, 0)))
