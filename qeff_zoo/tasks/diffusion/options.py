# SPDX-License-Identifier: Apache-2.0
"""Options of images and videos that texts become, and the images."""

import math
import operator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array

#: Most steps, those of the training; and the longest side of an image.
MOST_STEPS, LONGEST = 1000, 4096
_SEEDS = 1 << 64
_MOST_BLUR = 256  # pixels


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options of an image.

    Args:
        negative_prompt: Text that the image is guided away from; None for none.
        seed: Seed of the noise: equal seeds give equal images, and the noise of PyTorch's generator on the CPU.
        steps: Number of steps of the scheduler.
        guidance_scale: Scale of guidance by the prompt.
        true_cfg_scale: Scale of guidance away from the negative prompt, for models whose own guidance is an input.
        height: Height in pixels.
        width: Width in pixels.
        strength: Share of the steps that an initial image is changed by, over 0 to 1; None without one.
        mask_blur: Radius in pixels that the edges of a mask are blurred by; None for none.
    """

    negative_prompt: str | None = None
    seed: int
    steps: int
    guidance_scale: float
    true_cfg_scale: float = 1.0
    height: int
    width: int
    strength: float | None = None
    mask_blur: float | None = None

    def check(self, unit: int) -> None:
        """Refuse values that no image has.

        Args:
            unit: Number of pixels of which height and width are multiples.

        Raises:
            GenerationError: A value is out of its range.
        """
        _require_integer("steps", self.steps, 1, MOST_STEPS)
        _require_integer("seed", self.seed, 0, _SEEDS - 1)
        for name, side in (("height", self.height), ("width", self.width)):
            _require_integer(name, side, unit, LONGEST)
            if side % unit:
                near = max(unit, round(side / unit) * unit)
                raise GenerationError(
                    f"The {name} of an image is {side}; expected a multiple of {unit} pixels, which the model's levels "
                    f"and its VAE divide it by. Choose {near}."
                )
        for name in ("guidance_scale", "true_cfg_scale", "guidance_scale_2"):
            scale = getattr(self, name, None)
            if scale is not None and not (_is_number(scale) and scale >= 0):
                raise GenerationError(
                    f"{name} is {scale!r}; expected a number of 0 or more. Correct it, or leave it out."
                )
        for name, most in (("strength", 1), ("mask_blur", _MOST_BLUR)):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value <= most):
                raise GenerationError(
                    f"{name} is {value!r}; expected a number from 0 to {most}. Correct it, or leave it out."
                )

    def refuse_initial_image(self) -> None:
        """Refuse options of an initial image where there is none.

        Raises:
            GenerationError: There is such an option.
        """
        for name in ("strength", "mask_blur"):
            if (value := getattr(self, name)) is not None:
                raise GenerationError(
                    f"{name} is {value!r}, and there is no initial image; expected one. Give an image, or leave it out."
                )


@dataclass(frozen=True, kw_only=True)
class VideoOptions(ImageOptions):
    """Options of a video, whose frames have those of an image.

    Args:
        frames: Number of frames.
        guidance_scale_2: Scale of guidance in the steps of the second model, for pipelines with two; None for that of
            the first.
    """

    frames: int
    guidance_scale_2: float | None = None

    def check_frames(self, every: int, most: int) -> None:
        """Refuse numbers of frames that the VAE does not decode.

        Args:
            every: Number of frames of each latent but the first, which has one.
            most: Largest number of frames.

        Raises:
            GenerationError: The number is out of its range, or none of the VAE's.
        """
        _require_integer("frames", self.frames, 1, most)
        if (self.frames - 1) % every:
            near = 1 + round((self.frames - 1) / every) * every
            raise GenerationError(
                f"frames is {self.frames}; expected 1 more than a multiple of {every}, which the VAE decodes. Choose "
                f"{near}."
            )

    def check_second_scale(self, *, has_second: bool) -> None:
        """Refuse a scale for a second model that there is not.

        Args:
            has_second: Whether there is one.

        Raises:
            GenerationError: There is none.
        """
        if self.guidance_scale_2 is not None and not has_second:
            raise GenerationError(
                f"guidance_scale_2 is {self.guidance_scale_2!r}, and the pipeline has one transformer; expected "
                "guidance_scale alone. Leave it out."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_integer(name: str, value: Any, least: int, most: int) -> None:
    try:
        fits = not isinstance(value, bool) and least <= operator.index(value) <= most
    except TypeError:
        fits = False
    if not fits:
        raise GenerationError(
            f"{name} is {value!r}; expected a whole number from {least:,} to {most:,}. Correct it, or leave it out."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratedImage:
    """An image of a text.

    Args:
        pixels: Red, green and blue, uint8 (height, width, 3).
        options: Options of the image, such as its seed.
    """

    pixels: Array
    options: ImageOptions

    def as_png(self) -> bytes:
        """Return the image as a PNG file."""
        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG")
        return file.getvalue()
