# SPDX-License-Identifier: Apache-2.0
"""Image processors of Molmo and Molmo 2; see `qeff_zoo.media.image_rules`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.interpolation import resize_aliased, resize_shares
from qeff_zoo.media.pixels import check_room, numbers

_BILINEAR = 2  # as Pillow numbers its filters


def whole_and_overlapping_crops(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Molmo 2: the whole image, then overlapping crops of a canvas; squares of their patches are pooled into tokens.

    Returns `pixel_values` (crops of all images, patches, values); `image_token_pooling` (image tokens, patches of
    each), patch numbers counted over all crops, -1 for padding; `image_grids` (n, 4), rows and columns of image
    tokens of the whole image and of the canvas; and `image_num_crops` (n).
    """
    arrays, crops = _cropped(images, settings, _stretched)
    _, patch = _crop(settings)
    return {
        "pixel_values": np.stack([_patches(one, patch) for part in crops for one in part]),
        **arrays,
    }


def whole_and_padded_crops(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Molmo: as for Molmo 2, of canvases that keep an image's shape and are padded with black.

    Returns the same, and `image_masks` (crops of all images, patches), the share of each patch that is no padding: of
    the crops of the canvas, followed by -1 in place of those of the whole image, as the published code orders them.
    """
    _require_even(settings)
    arrays, crops = _cropped(images, settings, _fitted)
    _, patch = _crop(settings)
    pixels = [_patches(one[..., :3], patch) for part in crops for one in part]
    masks = []
    for part in crops:
        shares = [_patches(one[..., 3:], patch).mean(-1) for one in part[1:]]
        masks += [*shares, np.full_like(shares[0], -1)]
    return {"pixel_values": np.stack(pixels), **arrays, "image_masks": np.stack(masks)}


def _cropped(
    images: Sequence[Pixels],
    settings: Mapping[str, Any],
    resize: Callable[[Pixels, int, int, Mapping[str, Any]], NDArray[Any]],
) -> tuple[Arrays, list[list[NDArray[Any]]]]:
    """Return the arrays of images besides their pixels, and the crops of each, (side, side, channels).

    Args:
        images: Images of one request.
        settings: Settings of the processor.
        resize: Function that makes a canvas of an image, its height and width, and the settings.
    """
    side, patch = _crop(settings)
    within, before, counts = (side // patch) ** 2, 0, []
    pooled, grids, every = list[NDArray[np.int64]](), [], []
    for image in images:
        crops, indices = _overlapping(image, settings, resize)
        whole = np.arange(within).reshape(side // patch, side // patch)
        shapes = []
        for at, lie in ((0, whole), (within, indices)):
            squares, shape = squares_of(lie, settings["pooling_size"])
            pooled.append(np.where(squares < 0, -1, squares + at + before))
            shapes += shape
        every.append([resize(image, side, side, settings), *crops])
        grids.append(shapes)
        counts.append(len(every[-1]))
        before += within * len(every[-1])
    arrays = {
        "image_token_pooling": np.concatenate(pooled),
        "image_grids": np.array(grids),
        "image_num_crops": np.array(counts),
    }
    return arrays, every


def _stretched(image: Pixels, height: int, width: int, settings: Mapping[str, Any]) -> NDArray[Any]:
    """Resize an image to a canvas, (height, width, 3)."""
    stretched = resize_aliased(image, height, width)
    return numbers(stretched, settings, at_once=True).transpose(1, 2, 0)


def _fitted(image: Pixels, height: int, width: int, settings: Mapping[str, Any]) -> NDArray[Any]:
    """Resize an image into a canvas, and pad it at all sides: colors, and 1 for pixels of the image."""
    sides = [np.float32(length) for length in image.shape[:2]]
    scale = min(np.float32(new) / old for new, old in zip((height, width), sides, strict=True))
    tall, wide = (int(old * scale) for old in sides)
    check_room(image, tall, wide)
    top, left = (height - tall) // 2, (width - wide) // 2
    canvas = np.zeros((height, width, 4), np.float32)
    inner = canvas[top : top + tall, left : left + wide]
    inner[..., 3] = 1
    if not is_blank(image):
        shares = resize_shares(image.astype(np.float32) / np.float32(255), tall, wide)
        inner[..., :3] = np.clip(shares, 0, 1)
    mean, std = (np.asarray(settings[name], np.float32) for name in ("image_mean", "image_std"))
    canvas[..., :3] = (canvas[..., :3] - mean) / std
    return canvas


def _require_even(settings: Mapping[str, Any]) -> None:
    """Check that no square of patches reaches beyond the part of a crop that is in the canvas.

    Raises:
        CheckpointError: If a crop or its margins have another number of patches than whole squares.
    """
    side, patch = _crop(settings)
    pool = settings["pooling_size"][0]
    if any(one % pool for one in (side // patch, *settings["overlap_margins"])):
        raise CheckpointError(
            f"Cannot cut images into crops: {side // patch} patches on a side, and `overlap_margins` "
            f"{settings['overlap_margins']!r}. Expected multiples of {pool}, in which patches are pooled. Correct the "
            "processor's JSON."
        )


def frames_as_crops(frames: NDArray[np.float32], settings: Mapping[str, Any]) -> Arrays:
    """Return each frame of a video as an image of one crop.

    Returns `pixel_values` (frames, patches, values); and, shared by all frames, `image_token_pooling` (image tokens,
    patches of each) and `image_grids` (1, 4), with an empty canvas.
    """
    side, patch = _crop({**settings, "overlap_margins": (0, 0)})
    indices = np.arange((side // patch) ** 2).reshape(side // patch, side // patch)
    squares, shape = squares_of(indices, settings["pooling_size"])
    return {
        "pixel_values": np.stack([_patches(frame.transpose(1, 2, 0), patch) for frame in frames]),
        "image_token_pooling": squares,
        "image_grids": np.array([[*shape, 0, 0]]),
    }


def _crop(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the side in pixels of a crop and of a patch.

    Raises:
        CheckpointError: If sizes or pooling squares are not square, or the margins leave no room in a crop.
    """
    size, pool, patch = (settings[name] for name in ("size", "pooling_size", "patch_size"))
    side, edges = size.get("height"), sum(settings["overlap_margins"]) * patch["height"]
    if side != size.get("width") or len({*pool}) > 1 or not edges < side or side % patch["height"]:
        raise CheckpointError(
            f"Cannot cut images into crops: `size` is {size!r}, `patch_size` {patch!r}, `pooling_size` {pool!r} and "
            f"`overlap_margins` {settings['overlap_margins']!r}. Expected squares, of whole patches, with room between "
            "the margins. Correct the processor's JSON."
        )
    if settings["resample"] != _BILINEAR:
        raise CheckpointError(
            f"Cannot resize images: `resample` is {settings['resample']!r}. Expected {_BILINEAR}, bilinear. Correct "
            "the processor's JSON."
        )
    return int(side), int(patch["height"])


def _overlapping(
    image: Pixels,
    settings: Mapping[str, Any],
    resize: Callable[[Pixels, int, int, Mapping[str, Any]], NDArray[Any]],
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Cut the canvas to which an image is resized into overlapping crops.

    Returns the crops, and for each patch of the canvas its number among the patches of all crops.
    """
    side, patch = _crop(settings)
    first, last = settings["overlap_margins"]
    edges = (first + last) * patch
    step = side - edges
    high, wide = _tiling(image, edges, step, settings["max_crops"])
    canvas = resize(image, high * step + edges, wide * step + edges, settings)
    crops = [
        canvas[top : top + side, left : left + side]
        for top in range(0, high * step, step)
        for left in range(0, wide * step, step)
    ]
    count = side // patch
    indices = np.arange(high * wide * count**2).reshape(high, wide, count, count)
    indices[1:, :, :first] = indices[:, 1:, :, :first] = -1
    indices[:-1, :, count - last :] = indices[:, :-1, :, count - last :] = -1
    flat = indices.transpose(0, 2, 1, 3).reshape(-1)
    return crops, flat[flat >= 0].reshape(canvas.shape[0] // patch, canvas.shape[1] // patch)


def _tiling(image: Pixels, edges: int, step: int, most: int) -> tuple[int, int]:
    """Choose rows and columns of crops: those that enlarge an image least, else shrink it least."""
    sides = range(1, most + 1)
    tilings = sorted(
        ((high, wide) for high in sides for wide in sides if high * wide <= most),
        key=lambda one: (one[0] * one[1], one[0]),
    )
    own = np.array(image.shape[:2], np.float32) - edges
    with np.errstate(divide="ignore"):  # an image as large as the margins
        scales = (np.array(tilings, np.float32) * step / own).min(1)
    enlarging = np.where(scales < 1, np.float32(10e9), scales)
    return tilings[int(scales.argmax() if (scales < 1).all() else enlarging.argmin())]


def squares_of(
    indices: NDArray[np.int64], pool: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the patches pooled into each token, -1 beyond the edges, and the rows and columns of tokens."""
    missing = [-size % unit for size, unit in zip(indices.shape, pool, strict=True)]
    around = [(name // 2, name - name // 2) for name in missing]
    filled = np.pad(indices, around, constant_values=-1)
    high, wide = (size // unit for size, unit in zip(filled.shape, pool, strict=True))
    squares = filled.reshape(high, pool[0], wide, pool[1]).transpose(0, 2, 1, 3)
    return squares.reshape(high * wide, -1), [high, wide]


def _patches(crop: NDArray[Any], patch: int) -> NDArray[Any]:
    """Cut a crop (rows, columns, channels) into patches, (patches, values)."""
    count = len(crop) // patch
    blocks = crop.reshape(count, patch, count, patch, -1).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(count**2, -1)
