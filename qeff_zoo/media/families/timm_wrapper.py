# SPDX-License-Identifier: Apache-2.0
"""Image processor of timm; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    numbers,
    resize,
    shortest_edge,
)

#: timm's names of Pillow's filters.
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def settings_of_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor settings for `pretrained_cfg` of a timm checkpoint."""
    _, height, width = config.get("input_size") or (3, 224, 224)
    settings = {
        "image_mean": config.get("mean"),
        "image_std": config.get("std"),
        "resample": _FILTERS.get(str(config.get("interpolation"))),
        "crop_pct": config.get("crop_pct"),
        "crop_mode": config.get("crop_mode"),
    }
    return {
        "image_processor_type": "TimmWrapperImageProcessor",
        "size": {"height": height, "width": width},
        **{name: value for name, value in settings.items() if value is not None},
    }


def scaled_and_cropped(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """timm: resized to `size` divided by `crop_pct`, by the mode `crop_mode`, then center-cropped.

    Returns `pixel_values` (n, 3, height, width).
    """
    size = settings["size"]["height"], settings["size"]["width"]
    tall, wide = (math.floor(side / settings["crop_pct"]) for side in size)
    mode, fill, arrays = settings["crop_mode"], (0, 0, 0), []
    if mode == "border":
        fill = tuple(round(255 * value) for value in settings["image_mean"])
    for image in images:
        if mode == "squash":
            new = tall, wide
        elif mode == "center" and tall == wide:
            new = shortest_edge(image, tall)
        else:
            ratios = image.shape[0] / tall, image.shape[1] / wide
            ratio = max(ratios) if mode == "border" else min(ratios)
            new = round(image.shape[0] / ratio), round(image.shape[1] / ratio)
        scaled = resize(image, *new, settings["resample"])
        arrays.append(numbers(_middle(scaled, *size, fill), settings))
    return {"pixel_values": stacked(arrays)}


def _middle(image: Pixels, height: int, width: int, fill: Sequence[int]) -> Pixels:
    """Crop the center; a color pads an image that is smaller. Halves are rounded as in torchvision."""
    down, right = (
        max(new - old, 0) for new, old in zip((height, width), image.shape, strict=False)
    )
    canvas = np.empty((image.shape[0] + down, image.shape[1] + right, 3), image.dtype)
    canvas[:] = fill
    top, left = down // 2, right // 2
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    top, left = round((canvas.shape[0] - height) / 2), round((canvas.shape[1] - width) / 2)
    return canvas[top : top + height, left : left + width]
