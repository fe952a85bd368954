# SPDX-License-Identifier: Apache-2.0
"""A video of a text, and its files: MP4 by PyAV of the extra `media`, GIF and images of the frames by Pillow."""

import re
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from qeff_zoo.disk.staging import staged_beside, write_durably
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.options import VideoOptions

#: Suffixes of files, and the place of a frame's number in the names of images.
SUFFIXES = (".mp4", ".gif", ".png")
_NUMBER = re.compile(r"[^%]*%0?\d?d[^%]*")
_MOST_RATE = 240
_QUALITY = "18"  # of x264: without visible loss
_SECOND, _HUNDREDTH = 1000, 10  # milliseconds; a GIF's times are hundredths of a second


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratedVideo:
    """A video of a text.

    Args:
        pixels: Red, green and blue, uint8 (frames, height, width, 3).
        frame_rate: Frames per second of the model's training.
        options: Options of the video, such as its seed.
    """

    pixels: Array
    frame_rate: int
    options: VideoOptions

    def write(self, path: str | Path, fps: float | None = None) -> None:
        """Write the video to a file, or its frames to numbered files; an interrupted write leaves the old content.

        Args:
            path: File that ends with .mp4 or .gif, or images such as video-%03d.png.
            fps: Frames per second; None for those of the training.

        Raises:
            GenerationError: The name has another suffix, or a library that writes it is not installed.
        """
        check_file(path)
        check_rate(fps)
        path, rate = Path(path), fps or self.frame_rate
        if path.suffix.lower() == ".png":
            self._write_frames(path)
        else:
            write = _mp4 if path.suffix.lower() == ".mp4" else _gif
            write_durably(path, write(self.pixels, rate))

    def _write_frames(self, path: Path) -> None:
        from PIL import Image

        names = [path.name % number for number in range(len(self.pixels))]
        with staged_beside(path) as folder:
            for name, pixels in zip(names, self.pixels, strict=True):
                Image.fromarray(pixels).save(folder / name)
            for name in names:
                (folder / name).replace(path.with_name(name))


def check_file(path: str | Path) -> None:
    """Refuse names of files that no video is written to.

    Args:
        path: The name.

    Raises:
        GenerationError: It has another suffix, or no place for a number, or PyAV is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise GenerationError(
            f"Cannot write a video to {str(path)!r}; expected a name that ends with {' or '.join(SUFFIXES)}. Rename it."
        )
    if suffix == ".png" and not _NUMBER.fullmatch(Path(path).name):
        raise GenerationError(
            f"Cannot write the frames of a video to {str(path)!r}: they are several images. Expected a name with the "
            "place of their numbers, such as video-%03d.png. Rename it, or write a .gif or an .mp4."
        )
    if suffix == ".mp4" and find_spec("av") is None:
        raise GenerationError(
            f"Cannot write {str(path)!r}: PyAV, which writes MP4, is not installed. Expected the extra `media`. Run "
            "`pip install 'qeff-zoo[media]'`, or write a .gif."
        )


def check_rate(fps: float | None) -> None:
    """Refuse a number of frames per second that no file has.

    Args:
        fps: The number; None for that of the model.

    Raises:
        GenerationError: It is out of its range.
    """
    if fps is not None and not 0 < fps <= _MOST_RATE:  # also without an order, as nan
        raise GenerationError(
            f"fps is {fps!r}; expected a number over 0, to {_MOST_RATE}. Correct it, or leave it out."
        )


def _mp4(pixels: Array, rate: float) -> bytes:
    import av

    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001))
        stream.height, stream.width = pixels.shape[1:3]
        stream.pix_fmt, stream.options = "yuv420p", {"crf": _QUALITY}
        for one in pixels:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(one, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def _gif(pixels: Array, rate: float) -> bytes:
    from PIL import Image

    first, *others = map(Image.fromarray, pixels)
    # Times of frames are rounded one by one, so that those of all are right.
    ends = [round(number * _SECOND / rate / _HUNDREDTH) for number in range(len(pixels) + 1)]
    durations = [max(end - begin, 1) * _HUNDREDTH for begin, end in pairwise(ends)]
    file = BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return file.getvalue()
