# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT: the whole image, then all tiles joined, with a learned token after each line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Layout
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class LlavaNext(Tiles):
    """Tiles whose features are joined to lines."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(arrange=_arrange)

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """See `Images`."""
        import torch

        sizes = {"image_sizes": torch.tensor([pixels.shape[2:]])}
        return {**super().forward_arguments(pixels, more), **sizes}

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """See `Images`: a frame has half as many rows and columns as an image."""
        vision = config["vision_config"]
        side = -(-(int(vision["image_size"]) // int(vision["patch_size"])) // 2)
        return len(prepared["pixel_values"]) * side**2 + 1


def _arrange(tiles: "Sequence[Array]", prepared: "Mapping[str, Array]", config: Any) -> "Array":
    """Order the features of tiles, each of which ends with the learned token."""
    import numpy as np

    from qeff_zoo.runtime.caches.image_prompt_templates import OF_VIDEO

    parts, newline = [tile[:-1] for tile in tiles], tiles[0][-1:]
    if OF_VIDEO in prepared:
        return np.concatenate([*map(_halved, parts), newline])
    if len(tiles) == 1:
        return tiles[0]
    size, side = int(config["vision_config"]["image_size"]), math.isqrt(len(parts[0]))
    height, width = (int(pixels) for pixels in prepared["image_sizes"].reshape(2))
    best = _best_of(height, width, config["image_grid_pinpoints"])
    tall, wide = (pixels // size for pixels in best)
    whole = np.stack(parts[1 : 1 + tall * wide]).reshape(tall, wide, side, side, -1)
    whole = whole.transpose(0, 2, 1, 3, 4).reshape(tall * side, wide * side, -1)
    whole = _shrunk(_unpadded(whole, height, width), side, config.get("vision_aspect_ratio"))
    newlines = np.broadcast_to(newline, (len(whole), 1, whole.shape[2]))
    lines = np.concatenate([whole, newlines], axis=1)
    return np.concatenate([parts[0], lines.reshape(-1, whole.shape[2])])


def _best_of(height: int, width: int, choices: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Choose the (height, width) that keeps the most pixels of an image; ties go to the one that wastes least."""

    def worth(choice: Sequence[int]) -> tuple[int, int]:
        scale = min(choice[1] / width, choice[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - choice[0] * choice[1]

    tall, wide = max(choices, key=worth)
    return tall, wide


def _unpadded(features: "Array", height: int, width: int) -> "Array":
    """Return features (rows, columns, …) without the padding of an image of (height, width)."""
    rows, columns = features.shape[:2]
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        cut = (rows - kept) // 2
        return features[cut : rows - cut]
    kept = int(round(width * (rows / height), 7))
    cut = (columns - kept) // 2
    return features[:, cut : columns - cut]


def _shrunk(features: "Array", side: int, limit: str | None) -> "Array":
    """Interpolate the features of an image with more tiles than `limit` allows, as `anyres_max_9`."""
    import numpy as np

    rows, columns = features.shape[:2]
    most = int(limit.removeprefix("anyres_max_")) if limit else 0
    ratio = math.sqrt(rows * columns / (most * side**2)) if most else 0
    if ratio <= 1.1:
        return features
    down, right = (_taps(old, int(old // ratio)).astype(features.dtype) for old in (rows, columns))
    shrunk: Array = np.einsum("ri,ijw,cj->rcw", down, features, right, optimize=True)
    return shrunk


def _halved(features: "Array") -> "Array":
    """Interpolate the features of a frame to half as many rows and columns."""
    import numpy as np

    side = math.isqrt(len(features))
    taps = _taps(side, math.ceil(side / 2)).astype(features.dtype)
    square = features.reshape(side, side, -1)
    halved: Array = np.einsum("ri,ijw,cj->rcw", taps, square, taps)
    return halved.reshape(-1, features.shape[-1])


def _taps(old: int, new: int) -> "Array":
    """Return the weights of bilinear interpolation, (new, old), without corners aligned."""
    import numpy as np

    at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, None)
    first = np.minimum(at.astype(int), old - 1)
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new), first), 1 - (at - first))
    np.add.at(weights, (np.arange(new), np.minimum(first + 1, old - 1)), at - first)
    return weights
