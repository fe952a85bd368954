# SPDX-License-Identifier: Apache-2.0
"""Session of a depth estimation package: images in, maps of depths out."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from qeff_zoo.contract import DEPTH_ESTIMATION
from qeff_zoo.media.families.zoedepth import border
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.media.interpolation import resize_numbers
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.images.session import ImageSession


@dataclass(frozen=True, kw_only=True)
class DepthEstimate:
    """Depth of an image; its fields are the keys of transformers' pipeline.

    Args:
        predicted_depth: Depth of each pixel, float32, (height, width) of the image: in meters of a metric model, else a
            relative value, which is larger for nearer pixels.
        depth: Grayscale image of it, uint8, (height, width): 0 is its least value, 255 its largest.
    """

    predicted_depth: Array
    depth: Array

    @classmethod
    def of(cls, depth: Array) -> "DepthEstimate":
        """Return the estimate of a map in the size of the image."""
        least, most = depth.min(), depth.max()
        spread = most - least if most > least else depth.dtype.type(1)
        return cls(predicted_depth=depth, depth=((depth - least) / spread * 255).astype(np.uint8))

    def as_png(self) -> bytes:
        """Return the grayscale image as a PNG file, compressed in a third of the time of Pillow's default."""
        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.depth).save(file, "PNG", compress_level=1)
        return file.getvalue()


class DepthEstimationSession(ImageSession):
    """An opened package of the task `depth-estimation`; see `ImageSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/dpt-large")  # doctest: +SKIP
        >>> session.estimate(["room.jpg"])[0].predicted_depth.shape  # doctest: +SKIP
        (480, 640)
    """

    task = DEPTH_ESTIMATION
    output = "predicted_depth"

    def estimate(
        self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> list[DepthEstimate]:
        """Return the depth of each image; adjacent images of one size share calls. See `prepare`.

        Raises:
            GenerationError: There are no images.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        return [self.estimate_of(depth, *size) for depth, size in self.answers(images, limits)]

    def estimate_of(self, depth: Array, height: int, width: int) -> DepthEstimate:
        """Return the estimate of an image from a map of the graph, without the border of processed images.

        Args:
            depth: Output of the graph, (rows, columns).
            height: Height of the image.
            width: Width of the image.
        """
        down, right = border(height, width, self.processor.settings)
        resized = resize_numbers(depth[None], height + 2 * down, width + 2 * right)[0]
        return DepthEstimate.of(resized[down : down + height, right : right + width])
