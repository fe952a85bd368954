# SPDX-License-Identifier: Apache-2.0
"""Outputs of Hugging Face's tokenizers and processors, as token ids and images of each prompt."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import GenerationError

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.prepared import Prepared
    from qeff_zoo.runtime.program import Array
    from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession

_PIXELS, _PIXEL_MASK = "pixel_values", "pixel_attention_mask"
#: Arrays with the grid of patches of each image. The patches of all images are concatenated along the first axis of the
#: pixels (prefix of several names), or along the last axis.
_GRIDS, _GRIDS_OF_LAST_AXIS = "image_grid_", "target_sizes"
#: Number of tiles of each image that lie in an array of their own.
_COUNTS = "num_local_patches"
_RATIOS = "aspect_ratio_ids"
#: Number of images of each prompt, of processors that cut no tiles of an image among several, and pad their number.
_OF_PROMPTS = "batch_num_images"
_CROPS, _CROP_GRIDS, _POOLED = "image_num_crops", "image_grids", "image_token_pooling"
#: Output of processors for audio and video.
_UNREAD = ("input_features", "audio_input_features", "pixel_values_videos")


def to_numpy(array: Any) -> "Array":
    """Return an array of torch or numpy, or a list, as numpy's array.

    Raises:
        GenerationError: If rows of a list differ in length.
    """
    from qeff_zoo.runtime import program

    try:
        return program.to_numpy(array)
    except ValueError as error:
        raise GenerationError(
            f"The inputs have an array whose rows differ in length: {error}. Expected rows of one length. Call the "
            "processor with padding=True and return_tensors='pt'."
        ) from error


def rows_of(inputs: Mapping[str, Any], name: str = "input_ids") -> list[list[int]]:
    """Return the values of each prompt's tokens, without padding.

    Args:
        inputs: Output of a tokenizer or processor: `input_ids` and, if prompts are padded, `attention_mask`.
        name: Name of the array with a value for each token; all are 0 if it is absent.

    Raises:
        GenerationError: If the inputs have no token ids.
    """
    import numpy as np

    if inputs.get("input_ids") is None:
        raise GenerationError(
            f"The inputs are {sorted(inputs)!r}; expected input_ids, as a tokenizer or processor returns them. Call "
            "it on the text."
        )
    ids = _batched(inputs["input_ids"])

    def rows(name: str, fill: "Callable[[Array], Array]") -> "list[Array]":
        given = inputs.get(name)
        return [fill(row) for row in ids] if given is None else _batched(given)

    mask, values = rows("attention_mask", np.ones_like), rows(name, np.zeros_like)
    return [row[is_token.astype(bool)].tolist() for row, is_token in zip(values, mask, strict=True)]


def _batched(values: Any) -> "list[Array]":
    """Return the rows of a batch; a single row may be given without one."""
    rows = [to_numpy(value) for value in values]
    return rows if rows and rows[0].ndim else [to_numpy(rows)]


def prompts_of(
    session: "ImageTextToTextSession", inputs: Mapping[str, Any]
) -> "Iterator[tuple[list[int], list[Prepared]]]":
    """Yield the token ids of each prompt, and its images, in the order of both.

    Args:
        session: Session of the package.
        inputs: Output of the checkpoint's processor.

    Raises:
        GenerationError: If the inputs have no token ids, have audio or videos, or more images than their prompts.
    """
    if unread := [name for name in _UNREAD if inputs.get(name) is not None]:
        raise GenerationError(
            f"The inputs have {' and '.join(unread)}; expected text and images, which this package reads. Call the "
            "processor without audio and videos."
        )
    rows = rows_of(inputs)
    arrays = {name: to_numpy(array) for name, array in inputs.items() if array is not None}
    images = iter(images_of(arrays, session.media.pixels, session.media.arrays))
    for tokens in rows:
        left, shown = (
            sum(token in session.media_tokens.placeholders for token in tokens),
            list["Prepared"](),
        )
        while left > 0 and (image := next(images, None)) is not None:
            shown.append(image)
            left -= session.reader.look(image).rows
        yield tokens, shown
    if unshown := sum(1 for _ in images):
        raise GenerationError(
            f"The inputs have {unshown} more images than its prompts have places for; expected as many of both. Call "
            "the processor on texts that have the model's token for each image, or leave images out."
        )


def images_of(
    inputs: "Mapping[str, Array]", pixels_name: str = _PIXELS, more: Sequence[str] = ()
) -> "list[Prepared]":
    """Return the arrays of each image, or of each tile if no array has a row for each image.

    Every array that is as long as the pixels, or has a row for each image, is passed on; arrays of tokens are not.

    Args:
        inputs: Output of a processor.
        pixels_name: Name of the pixels.
        more: Names of arrays of tiles beside the pixels.
    """
    import numpy as np

    shape = np.shape(inputs.get("input_ids", ()))
    arrays = {  # without those of tokens; some processors name pixels as an argument of old models
        name.replace(f"{_PIXELS}_images", _PIXELS): array
        for name, array in inputs.items()
        if (not shape or array.shape[: len(shape)] != shape) and name != "position_ids"
    }
    if pixels_name not in arrays:
        return []
    pixels = arrays[pixels_name]
    if _RATIOS in arrays:  # as many images for each prompt, some of which are padding
        return _at(arrays, pixels.shape[:2], np.argwhere(arrays[_RATIOS] > 0))
    if pixels.ndim == 5 and arrays.get(_PIXEL_MASK, pixels).ndim == 4:  # the same for tiles
        return _at(arrays, pixels.shape[:2], np.argwhere(arrays[_PIXEL_MASK].any((2, 3))))
    if _CROPS in arrays:
        return [*_of_crops(arrays)]
    if _COUNTS in arrays:
        return [*_with_tiles(arrays, more)]
    if _GRIDS_OF_LAST_AXIS in arrays:
        ends = arrays[_GRIDS_OF_LAST_AXIS].prod(axis=1).cumsum() * pixels.shape[2]
        return _parts(arrays, _GRIDS_OF_LAST_AXIS, np.split(pixels, ends[:-1], axis=-1))
    if grids := next((name for name in arrays if name.startswith(_GRIDS)), None):
        return _parts(arrays, grids, np.split(pixels, arrays[grids].prod(axis=1).cumsum()[:-1]))
    if pixels.ndim == 2:  # patches of one image
        return [{pixels_name: pixels}]
    images = _at(arrays, pixels.shape[:1], np.arange(len(pixels))[:, None])
    counts = inputs.get(_OF_PROMPTS, ())
    among = [several for count in counts for several in [count > 1] * count]
    return [
        {**image, pixels_name: image[pixels_name][:, :1]} if several else image
        for image, several in zip(images, among or [False] * len(images), strict=True)
    ]


def _at(
    arrays: "Mapping[str, Array]", shape: tuple[int, ...], indices: "Array"
) -> "list[Prepared]":
    """Return the arrays at each index of the leading axes, if those have the shape."""
    names = [name for name, array in arrays.items() if array.shape[: len(shape)] == shape]
    return [
        {name: arrays[name][tuple(slice(at, at + 1) for at in place)] for name in names}
        for place in indices.tolist()
    ]


def _parts(
    arrays: "Mapping[str, Array]", counting: str, parts: "Sequence[Array]"
) -> "list[Prepared]":
    """Return the arrays of each image: its part of the pixels, and a row of each array with one for each image."""
    count = len(arrays[counting])
    names = [name for name, array in arrays.items() if len(array) == count and name != _PIXELS]
    return [
        {_PIXELS: part, **{name: arrays[name][at : at + 1] for name in names}}
        for at, part in enumerate(parts)
    ]


def _with_tiles(inputs: "Mapping[str, Array]", more: Sequence[str]) -> "Iterator[Prepared]":
    """Yield the arrays of each image, with its tiles, which lie in an array of their own."""
    import numpy as np

    names, begun = {*more} & inputs.keys(), 0
    for at, count in enumerate(inputs[_COUNTS].tolist()):
        of_tiles = {name: inputs[name][begun : begun + count] for name in names if count}
        begun += count
        yield {_PIXELS: inputs[_PIXELS][[at]], _COUNTS: np.array([count]), **of_tiles}


def _of_crops(inputs: "Mapping[str, Array]") -> "Iterator[Prepared]":
    """Yield the arrays of each image: its crops, and its rows, which count the patches of all."""
    import numpy as np

    crop = row = 0
    for count, grid in zip(inputs[_CROPS].tolist(), inputs[_CROP_GRIDS], strict=True):
        rows = int(grid[0] * grid[1] + grid[2] * grid[3])
        pixels, pooled = inputs[_PIXELS], inputs[_POOLED][row : row + rows]
        before = crop * pixels.shape[1]
        yield {
            _PIXELS: pixels[crop : crop + count],
            _POOLED: np.where(pooled < 0, -1, pooled - before),
            _CROP_GRIDS: grid[None],
        }
        crop, row = crop + count, row + rows
