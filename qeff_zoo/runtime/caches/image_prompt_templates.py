# SPDX-License-Identifier: Apache-2.0
"""Layout of a tiled image in a prompt: the order of image features, and the tokens among them.

Features are ordered as in transformers' model, and tokens written as by its processor; a family of `multimodal/` has
both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.runtime.program import Array

#: Marker among the arrays of a video, or of a frame that is encoded separately.
OF_VIDEO = "of_video"
#: Tokens by their text, or as `field.number` of a list in the config, and numbers of placeholder tokens.
Written: TypeAlias = list[str | int]
#: Number of tiles, or of image tokens of the first, and the rows and columns of tiles; for an image without tiles,
#: rows and columns of image tokens.
Grid: TypeAlias = tuple[int, int, int]


def _in_order(tiles: Sequence[Array], prepared: Mapping[str, Array], config: Any) -> Array:
    return np.concatenate(tiles)


def _one_after_another(grid: Grid, rows: int) -> Written:
    return [rows]


def _counted(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    return tiles, tiles, 1


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of an image in a prompt.

    Args:
        arrange: A function of the features of each tile that returns those of the image, (image tokens, width).
        grid: A function that returns the number of tiles, and their rows and columns.
        write: A function that returns the tokens of an image, given its grid and number of image tokens.
        settings: Fields of processor_config.json that `write` takes as arguments.
        joined: Whether adjacent images share the token between them.
    """

    arrange: Callable[[Sequence[Array], Mapping[str, Array], Any], Array] = _in_order
    grid: Callable[[int, Mapping[str, Array], Any], Grid] = _counted
    write: Callable[..., Written] = _one_after_another
    settings: tuple[str, ...] = ()
    joined: bool = False


def processed_grid(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    """Return the rows and columns of tiles that the processor returns."""
    tall, wide = (int(one) for one in np.reshape(prepared.get("grids", (1, 1)), -1))
    return tiles, tall, wide
