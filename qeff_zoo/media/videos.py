# SPDX-License-Identifier: Apache-2.0
"""Videos, read without trust: a file (MP4, WebM, GIF, …), a folder or a list of images in, frames out."""

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
from qeff_zoo.media.containers import DecodedFrames, VideoTrack, open_video_track
from qeff_zoo.media.images import (
    LIMITS,
    ImageLimits,
    ImageSource,
    Pixels,
    blank,
    check_size,
    content_of,
    decoded_bytes_of,
    open_image,
    read_image,
    reading_pixels,
    size_of,
)
from qeff_zoo.media.signatures import demuxer_of
from qeff_zoo.media.steps import Steps, finished

if TYPE_CHECKING:
    from PIL import Image

Video: TypeAlias = Union[
    str, "os.PathLike[str]", bytes, Sequence[ImageSource], NDArray[Any], "Frames"
]

_EXPECTED = "a video (MP4, MOV, WebM, MKV, AVI, MPEG, FLV, WMV), or an animation (GIF, WebP, APNG)"
#: Memory for each pixel of a frame that is decoded: references of a decoder, and the frame in red, green and blue.
_BYTES_OF_REFERENCES = 40
_BYTES_OF_PIXEL = 12
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class Frames:
    """Frames of a video, all of one size.

    Attributes:
        frames: Frames in their order; those of a compressed video are decoded when they are read.
        fps: Frame rate; None if unknown.
        name: Description of the video in an error.
    """

    frames: Sequence[Pixels]
    fps: float | None
    name: str

    def reaching(self, index: int) -> Steps[Pixels]:
        """Return a frame, and pause after each one that is decoded on the way."""
        if not isinstance(self.frames, DecodedFrames):
            return self.frames[index]
        yield from self.frames.reaching(index)
        return self.frames.current


def read_video(source: Video, limits: ImageLimits = LIMITS) -> Frames:
    """Read all frames of a video at once; see `reading`."""
    return finished(reading(source, limits))


def reading(source: Video, limits: ImageLimits = LIMITS) -> Steps[Frames]:
    """Read all frames of a video, and pause after each; of a compressed video, only its header.

    Args:
        source: The path of a compressed video (MP4, WebM, …) or an animation (GIF, WebP, APNG), or its bytes; the path
            of a folder of images, in the order of the numbers in their names; a list of images; an array (frames,
            height, width, channels) of uint8; or `Frames`.
        limits: Maximum sizes; `pixels` limits all frames together, of a compressed video each frame; `file_bytes`
            limits each file.

    Raises:
        MediaError: If the video cannot be read, or has no frames, frames of several sizes, too many, or too many
            pixels.
    """
    if isinstance(source, Frames):
        return source
    name, pixels, fps = yield from _frames(source, limits)
    if not len(pixels):
        raise MediaError(
            f"Cannot read {name}: it has no frames. Expected one at least. Give another video, or images in a list."
        )
    if isinstance(pixels, DecodedFrames):
        return Frames(pixels, fps, name)
    if len(pixels) > limits.frames:
        raise MediaError(_too_many(name, len(pixels), limits))
    frames, left = list[Pixels](), limits.pixels
    for pixel in pixels:
        frames.append(read_image(pixel, limits))
        left -= frames[-1].shape[0] * frames[-1].shape[1]
        if left < 0:
            raise too_large(name, len(pixels), limits)
        yield
    _check_sizes(name, {(frame.shape[1], frame.shape[0]) for frame in frames})
    return Frames(frames, fps, name)


@dataclass(frozen=True, kw_only=True)
class OpenedVideo:
    """Video whose headers have been read.

    Attributes:
        shown: Frames without contents, for the computation of shapes.
        nbytes: Memory of the video during its decoding.
        is_timed: Whether the frame rate is known, or known to be absent; that of an animation is in its frames.
    """

    shown: Frames
    nbytes: int
    is_timed: bool

    @property
    def pixels(self) -> int:
        """Pixels of all frames."""
        return sum(frame.shape[0] * frame.shape[1] for frame in self.shown.frames)


def open_video(source: bytes | Sequence[ImageSource], limits: ImageLimits = LIMITS) -> OpenedVideo:
    """Read the headers of a video.

    Args:
        source: The bytes of a video, or a list of images.
        limits: Maximum sizes, as in `read_video`.

    Raises:
        MediaError: If it is no video, has too many frames, or too many pixels.
    """
    name = _title(source)
    image, frames = None, list[ImageSource]()
    if isinstance(source, bytes) and is_compressed(source):
        track = _track(content_of(source, name, limits), name, limits)
        pixels = track.size[0] * track.size[1]
        of_frames = min(track.count * pixels, limits.pixels)
        nbytes = _BYTES_OF_REFERENCES * pixels + _BYTES_OF_PIXEL * of_frames
        shown = _blank_frames([track.size] * track.count, track.fps or None, name)
        return OpenedVideo(shown=shown, nbytes=nbytes, is_timed=True)
    if isinstance(source, bytes):
        image = open_image(source, limits, expected=_EXPECTED)
    else:
        frames = list(source)
    count = _frame_count(image, name, limits) if image else len(frames)
    if count > limits.frames:
        raise MediaError(_too_many(name, count, limits))
    files: list[ImageSource] = [source] if isinstance(source, bytes) else frames
    sizes = [image.size] * count if image else [size_of(frame, limits) for frame in frames]
    pixels = sum(width * height for width, height in sizes)
    if pixels > limits.pixels:
        raise too_large(name, count, limits)
    nbytes = _BYTES_OF_PIXEL * pixels + max(map(decoded_bytes_of, files, sizes), default=0)
    shown = _blank_frames(sizes, None, name)
    return OpenedVideo(shown=shown, nbytes=nbytes, is_timed=image is None)


def _blank_frames(sizes: Sequence[tuple[int, int]], fps: float | None, name: str) -> Frames:
    shapes = {size: blank(size[1], size[0]) for size in sizes}
    return Frames([shapes[size] for size in sizes], fps, name)


def is_compressed(source: Video) -> bool:
    """Return whether a video is a file of a video codec, and not of images."""
    return isinstance(source, bytes) and bool(demuxer_of(source))


def _title(source: Any) -> str:
    return f"a video of {len(source):,} bytes" if isinstance(source, bytes) else "a video"


def _frames(source: Video, limits: ImageLimits) -> Steps[tuple[str, Sequence[Any], float | None]]:
    """Return the description of a video, its frames, and its frame rate if known."""
    if isinstance(source, bytes):
        name = _title(source)
        return name, *(yield from _file(source, name, limits))
    if isinstance(source, str | os.PathLike):
        path, name = Path(source), f"the video {os.fspath(source)!r}"
        if not path.is_dir():
            return name, *(yield from _file(content_of(path, name, limits), name, limits))
        files = (
            entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")
        )
        return name, sorted(files, key=_by_number), None
    if isinstance(source, np.ndarray) and source.ndim != 4:
        raise MediaError(
            f"Cannot read a video in an array with the shape {source.shape}. Expected (frames, height, width, "
            "channels). Stack its frames, or give a single image as one (images, --image)."
        )
    if not isinstance(source, Sequence | np.ndarray):
        raise MediaError(
            f"Cannot read a video: it is {type(source).__name__}. Expected a path, the bytes of a file, a list "
            "of images or an array. Give one of these."
        )
    return "a video", list(source), None


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return the natural sort key of a file name: 2.png before 10.png."""
    return [
        (int(one), "") if _DIGITS.fullmatch(one) else (-1, one) for one in _DIGITS.split(path.name)
    ]


def _track(data: bytes, name: str, limits: ImageLimits) -> VideoTrack:
    """Read the header of a compressed video, and check its sizes."""
    track = open_video_track(data, name, limits.frames)
    check_size(track.size, name, limits)
    if track.count > limits.frames:
        raise MediaError(_too_many(name, track.count, limits))
    pixels = track.count * track.size[0] * track.size[1]
    if pixels > limits.decoded_pixels:
        raise MediaError(
            f"Cannot read {name}: its {track.count:,} frames of {track.size[0]} x {track.size[1]} have {pixels:,} "
            f"pixels. Expected at most {limits.decoded_pixels:,} in all. Cut it, or make it smaller: `ffmpeg -i VIDEO "
            "-vf scale=640:-2 smaller.mp4`."
        )
    return track


def _file(data: bytes, name: str, limits: ImageLimits) -> Steps[tuple[Sequence[Any], float | None]]:
    """Return the frames of a file, and its frame rate if known."""
    if demuxer_of(data):
        track = _track(content_of(data, name, limits), name, limits)
        return track.frames, track.fps or None
    return (yield from _animation(data, name, limits))


def _animation(
    source: bytes, name: str, limits: ImageLimits
) -> Steps[tuple[list[Any], float | None]]:
    """Return the frames of an animation, and its frame rate if known."""
    from PIL import ImageSequence

    with open_image(source, limits, expected=_EXPECTED) as image:
        count, size = _frame_count(image, name, limits), image.size
        if count > limits.frames:
            raise MediaError(_too_many(name, count, limits))
        if count * size[0] * size[1] > limits.pixels:
            raise too_large(name, count, limits)
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


def too_large(name: str, count: int, limits: ImageLimits) -> MediaError:
    """Return the error for a video whose frames have too many pixels together."""
    return MediaError(
        f"Cannot read {name}: its {count:,} frames have too many pixels. Expected at most {limits.pixels:,} in all. "
        "Give fewer frames, or smaller ones."
    )
