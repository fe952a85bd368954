# SPDX-License-Identifier: Apache-2.0
"""Image processors limited to the number of patches that a program takes, through their regular settings."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qeff_zoo.media.families import (
    cosmos3_edge,
    gemma4,
    paddleocr_vl,
    pixtral,
    video_llama_3,
)
from qeff_zoo.media.image_processor import PROCESSORS, ImageProcessor

from . import image_rules as rules
from . import patch_rules

#: The numbers of soft tokens that Gemma 4's processor accepts.
_TOKENS = (1120, 560, 280, 140, 70)


def bounded(processor: ImageProcessor, patches: int) -> ImageProcessor:
    """Return a processor that reduces images further if a program takes fewer patches.

    Args:
        processor: Processor of the checkpoint; one without such a setting is returned unchanged.
        patches: Maximum number of patches in an image.
    """
    rule, _ = PROCESSORS[processor.name]
    bound = _BOUNDS.get(rule)
    if bound is None:
        return processor
    changed = bound(processor.settings, patches)
    return replace(processor, settings={**processor.settings, **changed})


def _by_pixels(settings: Mapping[str, Any], patches: int, frames: int = 1) -> dict[str, Any]:
    """Qwen2-VL and similar: `longest_edge` is a number of pixels, despite its name."""
    most = patches * settings["patch_size"] ** 2 * frames
    size = {name: min(value, most) for name, value in settings["size"].items()}
    return {"size": size}


def _by_frames(settings: Mapping[str, Any], patches: int) -> dict[str, Any]:
    return _by_pixels(settings, patches, settings["temporal_patch_size"])


def _by_edges(settings: Mapping[str, Any], patches: int) -> dict[str, Any]:
    """Pixtral: no side is longer than the side of a square with that many patches."""
    side = settings["patch_size"]["height"]
    most = math.isqrt(patches) * side
    return {"size": {name: min(value, most) for name, value in settings["size"].items()}}


def _by_tokens(settings: Mapping[str, Any], patches: int) -> dict[str, Any]:
    """Gemma 4: the largest number of soft tokens that its processor accepts and that fits, if one is small enough."""
    room = patches // settings["pooling_kernel_size"] ** 2
    most = next((count for count in _TOKENS if count <= room), room)
    return {"max_soft_tokens": min(settings["max_soft_tokens"], most)}


_BOUNDS: Mapping[rules.Rule, Callable[[Mapping[str, Any], int], dict[str, Any]]] = {
    patch_rules.grid_of_patches: _by_pixels,
    video_llama_3.grid_with_merge_sizes: _by_pixels,
    paddleocr_vl.lines_of_patches: _by_pixels,
    patch_rules.grid_of_frames: _by_frames,
    cosmos3_edge.grid_of_pixels: _by_frames,
    pixtral.whole_patches: _by_edges,
    gemma4.placed_patches: _by_tokens,
}
