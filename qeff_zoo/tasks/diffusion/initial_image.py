# SPDX-License-Identifier: Apache-2.0
"""Initial image of a drawing, and the mask of its part that is drawn anew, as diffusers' image processor prepares them.

Input: files, bytes, Pillow images or arrays. Output: pixels and masks of the size that is drawn. A mask is white where
the image is drawn anew, or, for OpenAI's clients, transparent.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.images import (
    LIMITS,
    ImageLimits,
    ImageSource,
    Pixels,
    open_image,
    read_image,
    reading_pixels,
    size_of,
)
from qeff_zoo.runtime.program import Array

if TYPE_CHECKING:
    from PIL import Image

_HALF = 0.5  # value from which on a pixel of a mask is white


@dataclass(frozen=True, kw_only=True, eq=False)
class InitialImage:
    """Image that a drawing begins with.

    Args:
        pixels: Red, green and blue, uint8 (height, width, 3).
        mask: Red, green and blue of the mask, uint8 (height, width, 3): white where the image is drawn anew; None
            without a mask.
    """

    pixels: Pixels
    mask: Pixels | None = None

    @classmethod
    def read(
        cls,
        image: ImageSource,
        mask: ImageSource | None = None,
        limits: ImageLimits = LIMITS,
        *,
        transparent: bool = False,
    ) -> "InitialImage":
        """Read an image and its mask.

        Args:
            image: The image.
            mask: The mask, of the same size.
            limits: Maximum size of each.
            transparent: Whether the mask is transparent, and not white, where the image is drawn anew.

        Raises:
            MediaError: One of them cannot be read, or exceeds a limit, or a transparent mask has no alpha.
            GenerationError: Their sizes differ.
        """
        check_mask(image, mask, limits, transparent=transparent)
        if mask is None:
            return cls(pixels=read_image(image, limits))
        of_mask = _transparency(mask, limits) if transparent else read_image(mask, limits)
        return cls(pixels=read_image(image, limits), mask=of_mask)

    def prepared(self, height: int, width: int, blur: float = 0) -> "PreparedImage":
        """Return the image and its mask in the size that is drawn.

        Args:
            height: Height in pixels.
            width: Width in pixels.
            blur: Radius in pixels that the edges of the mask are blurred by, before it is resized.
        """
        resized = np.asarray(_resized(self.pixels, height, width))
        shares = resized.astype(np.float32) / np.float32(255)
        values: Array = np.float32(2) * shares.transpose(2, 0, 1)[None] - np.float32(1)
        if self.mask is None:
            return PreparedImage(pixel_values=values)
        grey = np.asarray(_resized(self.mask, height, width, blur).convert("L"))
        white = grey.astype(np.float32) / np.float32(255) >= _HALF
        return PreparedImage(pixel_values=values, mask=white.astype(np.float32)[None, None])


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedImage:
    """Initial image in the size that is drawn.

    Args:
        pixel_values: Pixels, float32 (1, 3, height, width) from -1 to 1.
        mask: Mask, float32 (1, 1, height, width): 1 where the image is drawn anew; None without a mask.
    """

    pixel_values: Array
    mask: Array | None = None


def prepare_files(
    image: bytes, mask: bytes | None, limits: ImageLimits, height: int, width: int, blur: float
) -> PreparedImage:
    """Prepare the files of a client, whose mask is transparent where the image is drawn anew.

    Args:
        image: Content of the image's file.
        mask: Content of the mask's file.
        limits: Maximum size of each.
        height: Height in pixels of the image that is drawn.
        width: Width in pixels.
        blur: See `InitialImage.prepared`.

    Raises:
        MediaError: See `InitialImage.read`.
        GenerationError: See `InitialImage.read`.
    """
    return InitialImage.read(image, mask, limits, transparent=True).prepared(height, width, blur)


def check_mask(
    image: ImageSource,
    mask: ImageSource | None,
    limits: ImageLimits = LIMITS,
    *,
    transparent: bool = False,
) -> tuple[int, int]:
    """Check the sizes of an image and its mask, of which only headers are read; return the height and width.

    Args:
        image: The image.
        mask: The mask.
        limits: Maximum size of each.
        transparent: See `InitialImage.read`.

    Raises:
        MediaError: See `InitialImage.read`.
        GenerationError: See `InitialImage.read`.
    """
    width, height = size_of(image, limits)
    if mask is not None:
        across, down = size_of(mask, limits)
        if (across, down) != (width, height):
            raise GenerationError(
                f"The mask has {across} x {down} pixels, and the image {width} x {height}; expected equal sizes. "
                "Resize the mask."
            )
        if transparent and not _has_alpha(opened := _opened(mask, limits)):
            raise MediaError(
                f"The mask has no alpha (mode {opened.mode!r}); expected a PNG file that is transparent where the "
                "image is drawn anew. Add an alpha channel."
            )
    return height, width


def _opened(source: Any, limits: ImageLimits) -> "Image.Image":
    return open_image(source, limits)


def _has_alpha(image: "Image.Image") -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _transparency(source: ImageSource, limits: ImageLimits) -> Pixels:
    """Return white where a file is transparent, and black where it is opaque."""
    image = _opened(source, limits)
    with reading_pixels("a mask"):
        alpha = np.asarray(image.convert("RGBA").getchannel("A"))
    return np.repeat(255 - alpha[:, :, None], 3, axis=2)


def _resized(pixels: Pixels, height: int, width: int, blur: float = 0) -> "Image.Image":
    from PIL import Image, ImageFilter

    image = Image.fromarray(pixels)
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    return image.resize((width, height), Image.Resampling.LANCZOS)
