# SPDX-License-Identifier: Apache-2.0
"""Layouts of tiled images in a prompt: the order of image features, and the tokens among them.

A recipe names its layout. Features are ordered as in transformers' model, and tokens written as by its processor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.errors import MediaError
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
    """Layout of an image in a prompt, an entry of `LAYOUTS`.

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


# --- LLaVA-NeXT: the whole image, then all tiles joined, with a learned token after each line ------------------------


def _best_of(height: int, width: int, choices: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Choose the (height, width) that keeps the most pixels of an image; ties go to the one that wastes least."""

    def worth(choice: Sequence[int]) -> tuple[int, int]:
        scale = min(choice[1] / width, choice[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - choice[0] * choice[1]

    tall, wide = max(choices, key=worth)
    return tall, wide


def _unpadded(features: Array, height: int, width: int) -> Array:
    """Return features (rows, columns, …) without the padding of an image of (height, width)."""
    rows, columns = features.shape[:2]
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        cut = (rows - kept) // 2
        return features[cut : rows - cut]
    kept = int(round(width * (rows / height), 7))
    cut = (columns - kept) // 2
    return features[:, cut : columns - cut]


def _lines(tiles: Sequence[Array], prepared: Mapping[str, Array], config: Any) -> Array:
    """Order the features of tiles, each of which ends with the learned token."""
    parts, newline = [tile[:-1] for tile in tiles], tiles[0][-1:]
    if OF_VIDEO in prepared:
        return np.concatenate([*map(_halved, parts), newline])
    if len(tiles) == 1:
        return tiles[0]
    size, side = int(config["vision_config"]["image_size"]), math.isqrt(len(parts[0]))
    height, width = (int(one) for one in prepared["image_sizes"].reshape(2))
    tall, wide = (one // size for one in _best_of(height, width, config["image_grid_pinpoints"]))
    whole = np.stack(parts[1 : 1 + tall * wide]).reshape(tall, wide, side, side, -1)
    whole = whole.transpose(0, 2, 1, 3, 4).reshape(tall * side, wide * side, -1)
    whole = _shrunk(_unpadded(whole, height, width), side, config.get("vision_aspect_ratio"))
    ended = np.concatenate(
        [whole, np.broadcast_to(newline, (len(whole), 1, whole.shape[2]))], axis=1
    )
    return np.concatenate([parts[0], ended.reshape(-1, whole.shape[2])])


def _shrunk(features: Array, side: int, limit: str | None) -> Array:
    """Interpolate the features of an image with more tiles than `limit` allows, as `anyres_max_9`."""
    rows, columns = features.shape[:2]
    most = int(limit.removeprefix("anyres_max_")) if limit else 0
    ratio = math.sqrt(rows * columns / (most * side**2)) if most else 0
    if ratio <= 1.1:
        return features
    down, right = (_taps(old, int(old // ratio)).astype(features.dtype) for old in (rows, columns))
    found: Array = np.einsum("ri,ijw,cj->rcw", down, features, right, optimize=True)
    return found


def _halved(features: Array) -> Array:
    """Interpolate the features of a frame to half as many rows and columns."""
    side = math.isqrt(len(features))
    taps = _taps(side, math.ceil(side / 2)).astype(features.dtype)
    square = features.reshape(side, side, -1)
    found: Array = np.einsum("ri,ijw,cj->rcw", taps, square, taps)
    return found.reshape(-1, features.shape[-1])


def _taps(old: int, new: int) -> Array:
    """Return the weights of bilinear interpolation, (new, old), without corners aligned."""
    at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, None)
    first = np.minimum(at.astype(int), old - 1)
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new), first), 1 - (at - first))
    np.add.at(weights, (np.arange(new), np.minimum(first + 1, old - 1)), at - first)
    return weights


# --- Pixtral: an image of any size, with a token after each line -----------------------------------------------------


def _sized(_: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    unit = int(config["vision_config"]["patch_size"]) * int(config.get("spatial_merge_size", 1))
    height, width = (int(one) // unit for one in prepared["image_sizes"].reshape(2))
    return 1, height, width


def _broken_lines(grid: Grid, rows: int) -> Written:
    line: Written = [grid[2], "[IMG_BREAK]"]
    return [*(line * grid[1])[:-1], "[IMG_END]"]


# --- Gemma 3: crops of an image, which a sentence introduces ---------------------------------------------------------


def _uncut(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    if np.any(prepared.get("num_crops", 0)):
        raise MediaError(
            f"A picture was cut into {tiles - 1} crops beside the whole, which no prompt is written for here; expected "
            "the whole alone. Set `do_pan_and_scan` to false in preprocessor_config.json."
        )
    return tiles, tiles, 1


# --- Idefics 2: each part between tokens, which neighbors share ------------------------------------------------------


def _between(grid: Grid, rows: int) -> Written:
    part: Written = [rows // grid[0], "<fake_token_around_image>"]
    return [part[1], *part * grid[0]]


# --- tiles with names in the prompt ----------------------------------------------------------------------------------


def _split(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    """Return the grid of Idefics 3's processor, which counts no tiles for an image without tiles."""
    rows, columns = (
        int(prepared[name].reshape(-1)[0]) if name in prepared else 0 for name in ("rows", "cols")
    )
    return tiles, rows, columns


def _named_tiles(grid: Grid, rows: int) -> Written:
    each, found = rows // grid[0], Written()
    for row in range(grid[1]):
        for column in range(grid[2]):
            found += ["<fake_token_around_image>", f"<row_{row + 1}_col_{column + 1}>", each]
        found.append("\n")
    found[-1:] = ["\n\n"] if found else []
    return [*found, "<fake_token_around_image>", "<global-img>", each, "<fake_token_around_image>"]


def _named_or_one(grid: Grid, rows: int) -> Written:
    """Return the tokens of Idefics 3; an image without tiles has the name of a tile, not of the whole image."""
    each, found = rows // grid[0], Written()
    for row in range(max(grid[1], 1)):
        for column in range(max(grid[2], 1)):
            found += ["<fake_token_around_image>", f"<row_{row + 1}_col_{column + 1}>", each]
        found.append("\n")
    if grid[0] > 1:
        whole: Written = ["<fake_token_around_image>", "<global-img>", each]
        found[-1:] = ["\n\n", *whole, "<fake_token_around_image>"]
    return found


def _ratio(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    rows, columns = prepared.get("aspect_ratios", np.array([tiles - 1, 1])).reshape(2)
    return tiles, int(rows), int(columns)


def _separated_tiles(grid: Grid, rows: int) -> Written:
    tiles, tall, wide = grid
    each, found = rows // tiles, Written(["<|image_start|>"])
    for _ in range(tall if tiles > 1 else 0):
        found += [each, "<|tile_x_separator|>"] * wide
        found[-1] = "<|tile_y_separator|>"
    return [*found, "<|image|>", each, "<|image_end|>"]


def _numbered_tiles(grid: Grid, rows: int) -> Written:
    each, found = rows // grid[0], Written(["<|START_OF_IMG|>"])
    for number in range(1, grid[0]):
        found += [f"TILE_{number}", each]
    return [*found, "TILE_GLOBAL", each, "<|END_OF_IMG|>"]


def _ended_tiles(grid: Grid, rows: int) -> Written:
    tile: Written = [rows // grid[0], "<|IMG_LINE_BREAK|>"]
    return ["<|START_OF_IMG|>", *tile * grid[0], "<|END_OF_IMG|>"]


def _shaped(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    """Return the grid of LFM2-VL's processor, which returns rows and columns of tiles only on request."""
    if tiles > 1 and not {"image_rows", "image_cols"} <= prepared.keys():
        raise MediaError(
            f"Cannot tell how the {tiles} tiles of a picture lie: image_rows or image_cols is not there. Expected "
            "both, which its image processor returns with return_row_col_info=True. Call it so."
        )
    tall, wide = (
        int(np.reshape(prepared[name], -1)[0]) if name in prepared else 1
        for name in ("image_rows", "image_cols")
    )
    first = int(prepared["spatial_shapes"].reshape(-1, 2)[0].prod())
    return first // int(config["downsample_factor"]) ** 2, tall, wide


def _placed_tiles(grid: Grid, rows: int) -> Written:
    each, tall, wide = grid
    whole, found = rows - each * tall * wide, Written()
    for row in range(tall):
        for column in range(wide):
            found += [f"<|img_row_{row + 1}_col_{column + 1}|>", each]
    if whole:
        found += ["<|img_thumbnail|>", whole]
    return ["<|image_start|>", *(found if tall * wide > 1 else [rows]), "<|image_end|>"]


# --- rows and columns of tiles that a processor returns --------------------------------------------------------------


def told_grid(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    """Return the rows and columns of tiles that the processor returns."""
    tall, wide = (int(one) for one in np.reshape(prepared.get("grids", (1, 1)), -1))
    return tiles, tall, wide


# --- DeepSeek-OCR 2: tiles, then the whole image; the learned token at its end is kept, those of tiles are not -------


def _tiles_first(tiles: Sequence[Array], prepared: Mapping[str, Array], config: Any) -> Array:
    whole, *parts = tiles
    return np.concatenate([*(part[:-1] for part in parts), whole])


# --- Step 3.7: tiles in row-major order, then the whole image --------------------------------------------------------


def _parts_and_whole(tiles: int, prepared: Mapping[str, Array], config: Any) -> Grid:
    """Return the image tokens of the whole image, one for sixteen patches, and the rows and columns of tiles."""
    side = int(prepared["pixel_values"].shape[-1]) // int(config["vision_config"]["patch_size"])
    tall, wide = (int(one) for one in np.reshape(prepared.get("grids", (tiles - 1, 1)), -1))
    return (side // 4) ** 2, tall, wide


def _parts_first(tiles: Sequence[Array], prepared: Mapping[str, Array], config: Any) -> Array:
    whole, *parts = tiles
    return np.concatenate([*parts, whole])


def _write_parts_first(grid: Grid, rows: int) -> Written:
    whole, tall, wide = grid
    found = Written()
    for _ in range(tall):
        part: Written = ["<patch_start>", (rows - whole) // (tall * wide), "<patch_end>"]
        found += [*part * wide, "<patch_newline>"]
    return [*found[:-1], "<im_start>", whole, "<im_end>"]


#: Layouts by the names that recipes use.
LAYOUTS: Mapping[str, Layout] = {
    "": Layout(),
    "between": Layout(write=_between, joined=True),
    "broken_lines": Layout(grid=_sized, write=_broken_lines),
    "ended_tiles": Layout(write=_ended_tiles),
    "lines": Layout(arrange=_lines),
    "named_tiles": Layout(grid=_split, write=_named_tiles),
    "named_tiles_or_one": Layout(grid=_split, write=_named_or_one),
    "numbered_tiles": Layout(write=_numbered_tiles),
    "parts_first": Layout(arrange=_parts_first, grid=_parts_and_whole, write=_write_parts_first),
    "placed_tiles": Layout(grid=_shaped, write=_placed_tiles),
    "separated_tiles": Layout(grid=_ratio, write=_separated_tiles),
    "tiles_first": Layout(arrange=_tiles_first),
    "uncut": Layout(grid=_uncut),
}
