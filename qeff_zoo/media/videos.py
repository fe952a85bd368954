# SPDX-License-Identifier: Apache-2.0
"""Videos, read without trust: an animation, a folder or a list of images in, frames out."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
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
from qeff_zoo.media.steps import Steps, finished

if TYPE_CHECKING:
    from PIL import Image

Video: TypeAlias = Union[
    str, "os.PathLike[str]", bytes, Sequence[ImageSource], NDArray[Any], "Frames"
]

_CONTAINERS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv")
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class Frames:
    """Frames of a video, all of one size.

    Attributes:
        frames: Frames in their order.
        fps: Frame rate; None if unknown.
        name: Description of the video in an error.
    """

    frames: Sequence[Pixels]
    fps: float | None
    name: str


def read_video(source: Video, limits: ImageLimits = LIMITS) -> Frames:
    """Read all frames of a video at once; see `reading`."""
    return finished(reading(source, limits))


def reading(source: Video, limits: ImageLimits = LIMITS) -> Steps[Frames]:
    """Read all frames of a video, and pause after each.

    Args:
        source: The path of an animation (GIF, WebP, APNG), or its bytes; the path of a folder of images, in the order
            of the numbers in their names; a list of images; an array (frames, height, width, channels) of uint8; or
            `Frames`.
        limits: Maximum sizes; `pixels` limits all frames together, `file_bytes` each file.

    Raises:
        MediaError: If the video cannot be read, or has no frames, frames of several sizes, too many, or too many
            pixels.
    """
    if isinstance(source, Frames):
        return source
    name, found, fps = yield from _frames(source, limits)
    if not found:
        raise MediaError(
            f"Cannot read {name}: it has no frames. Expected one at least. Give an animation, or images in a list."
        )
    if len(found) > limits.frames:
        raise MediaError(_too_many(name, len(found), limits))
    frames, left = list[Pixels](), limits.pixels
    for one in found:
        frames.append(read_image(one, limits))
        left -= frames[-1].shape[0] * frames[-1].shape[1]
        if left < 0:
            raise MediaError(_too_large(name, len(found), limits))
        yield
    _check_sizes(name, {(one.shape[1], one.shape[0]) for one in frames})
    return Frames(frames, fps, name)


def pixels_of(source: bytes | Sequence[ImageSource], limits: ImageLimits = LIMITS) -> int:
    """Return the number of pixels in all frames of a video; only headers are read.

    Args:
        source: The bytes of an animation, or a list of images.
        limits: Maximum sizes, as in `read_video`.

    Raises:
        MediaError: If it is no video, has too many frames, or too many pixels.
    """
    name = _title(source)
    image, frames = None, list[ImageSource]()
    if isinstance(source, bytes):
        image = open_image(source, limits)
    else:
        frames = list(source)
    count = _frame_count(image, name, limits) if image else len(frames)
    if count > limits.frames:
        raise MediaError(_too_many(name, count, limits))
    sizes = [image.size] * count if image else [size_of(one, limits) for one in frames]
    pixels = sum(width * height for width, height in sizes)
    if pixels > limits.pixels:
        raise MediaError(_too_large(name, count, limits))
    return pixels


def _title(source: Any) -> str:
    return f"a video of {len(source):,} bytes" if isinstance(source, bytes) else "a video"


def _frames(source: Video, limits: ImageLimits) -> Steps[tuple[str, Sequence[Any], float | None]]:
    """Return the description of a video, its frames, and its frame rate if known."""
    if isinstance(source, bytes):
        name = _title(source)
        return name, *(yield from _animation(source, name, limits))
    if isinstance(source, str | os.PathLike):
        path, name = Path(source), f"the video {os.fspath(source)!r}"
        if path.suffix.lower() in _CONTAINERS:
            raise MediaError(
                f"Cannot read {name}: videos of {path.suffix} are not decoded. Expected an animation (GIF, WebP, APNG) "
                f"or a folder of frames. Make one: `ffmpeg -i {path.name} -vf fps=2 -f apng {path.stem}.png`."
            )
        if not path.is_dir():
            return name, *(yield from _animation(path, name, limits))
        files = (one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        return name, sorted(files, key=_by_number), None
    if isinstance(source, np.ndarray) and source.ndim != 4:
        raise MediaError(
            f"Cannot read a video in an array with the shape {source.shape}. Expected (frames, height, width, "
            "channels). Stack its frames, or give a single image as one (images, --image)."
        )
    if not isinstance(source, Sequence | np.ndarray):
        raise MediaError(
            f"Cannot read a video: it is {type(source).__name__}. Expected a path, the bytes of an animation, a list "
            "of images or an array. Give one of these."
        )
    return "a video", list(source), None


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return the natural sort key of a file name: 2.png before 10.png."""
    return [(int(one), "") if one.isdigit() else (-1, one) for one in _DIGITS.split(path.name)]


def _animation(
    source: Path | bytes, name: str, limits: ImageLimits
) -> Steps[tuple[list[Any], float | None]]:
    """Return the frames of a file, and its frame rate if known."""
    from PIL import ImageSequence

    with open_image(source, limits) as image:
        count, size = _frame_count(image, name, limits), image.size
        if count > limits.frames:
            raise MediaError(_too_many(name, count, limits))
        if count * size[0] * size[1] > limits.pixels:
            raise MediaError(_too_large(name, count, limits))
        frames, milliseconds = [], 0.0
        with reading_pixels(name):
            for frame in ImageSequence.Iterator(image):
                _check_sizes(name, {size, frame.size})  # before the frame is decoded
                frames.append(frame.copy())
                milliseconds += float(frame.info.get("duration", 0))
                yield
    return frames, count * 1000 / milliseconds if milliseconds else None


def _frame_count(image: "Image.Image", name: str, limits: ImageLimits) -> int:
    """Return the number of frames of an animation, of those of a TIFF file at most one above the limit."""
    with reading_pixels(name):
        count: int = 1
        if image.format != "TIFF":
            count = getattr(image, "n_frames", 1)
            return count
        with suppress(EOFError):  # Pillow's time grows with the square of the number
            while count <= limits.frames:
                image.seek(count)
                count += 1
        image.seek(0)
        return count


def _check_sizes(name: str, sizes: set[tuple[int, int]]) -> None:
    if len(sizes) > 1:
        one, other, *_ = sorted(sizes)
        raise MediaError(
            f"Cannot read {name}: its frames are of {len(sizes)} sizes, {one} and {other} among them (width, height). "
            "Expected one size. Scale the frames to one."
        )


def _too_many(name: str, count: int, limits: ImageLimits) -> str:
    return f"Cannot read {name}: it has {count:,} frames. Expected at most {limits.frames:,}. Give fewer."


def _too_large(name: str, count: int, limits: ImageLimits) -> str:
    return (
        f"Cannot read {name}: its {count} frames have too many pixels. Expected at most {limits.pixels:,} in all. Give "
        "fewer frames, or smaller ones."
    )
