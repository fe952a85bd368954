# SPDX-License-Identifier: Apache-2.0
"""Videos, read without trust: an animation, a folder or a list of pictures in, patches of sampled frames out.

Sampling, sizes and numbers are those of transformers' `Qwen2VLVideoProcessor`, whose resizing is torchvision's; here it
is Pillow's, as of pictures. Frames that come without times count as 24 a second, as there.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import PROCESSORS, standard
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import FORMATS, LIMITS, ImageLimits, Picture, Pixels, read_image
from qeff_zoo.media.patch_rules import patches_of_frames, smart_size
from qeff_zoo.media.pixels import resize

Video: TypeAlias = Union[str, "os.PathLike[str]", bytes, Sequence[Picture], NDArray[Any]]

_KIND = "Qwen2VLVideoProcessor"
_FPS = 24.0  # of frames without times
_CONTAINERS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv")
_DIGITS = re.compile(r"([0-9]+)")
_SETTINGS = {
    **PROCESSORS["Qwen2VLImageProcessor"][1],
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4, "max_frames": 768, "do_sample_frames": False, "max_video_tokens": 128_000,
}  # fmt: skip


@dataclass(frozen=True)
class Frames:
    """Pictures of a video, of one size.

    Attributes:
        pictures: In their order.
        fps: How many of them a second takes; None where nobody says.
        name: Of the video, in an error.
    """

    pictures: Sequence[Pixels]
    fps: float | None
    name: str


def read_video(source: Video, limits: ImageLimits = LIMITS) -> Frames:
    """Read all frames of a video.

    Args:
        source: The path of an animation (GIF, WebP, APNG), or its bytes; the path of a folder of pictures, in the order
            of the numbers in their names; a list of pictures; or an array (frames, height, width, channels) of uint8.
        limits: `pixels` are those of all frames together, `file_bytes` those of a file.

    Raises:
        MediaError: It cannot be read, has no frames, frames of several sizes, too many of them, or too many pixels.
    """
    name, found, fps = _frames(source, limits)
    if not found:
        raise MediaError(
            f"Cannot read {name}: it has no frames. Expected one at least. Give an animation, or pictures in a list."
        )
    if len(found) > limits.frames:
        raise MediaError(_too_many(name, len(found), limits))
    pictures, left = list[Pixels](), limits.pixels
    for one in found:
        pictures.append(read_image(one, limits))
        left -= pictures[-1].shape[0] * pictures[-1].shape[1]
        if left < 0:
            raise MediaError(_too_large(name, len(found), limits))
    sizes = sorted({(one.shape[1], one.shape[0]) for one in pictures})
    if len(sizes) > 1:
        raise MediaError(
            f"Cannot read {name}: its frames are of {len(sizes)} sizes, {sizes[0]} and {sizes[1]} among them (width, "
            "height). Expected one size. Scale the frames to one."
        )
    return Frames(pictures, fps, name)


def _frames(source: Video, limits: ImageLimits) -> tuple[str, Sequence[Any], float | None]:
    """Return what a video is called, its frames, and how many a second takes, where it says."""
    if isinstance(source, bytes):
        name = f"a video of {len(source):,} bytes"
        return name, *_animation(source, name, limits)
    if isinstance(source, str | os.PathLike):
        path, name = Path(source), f"the video {os.fspath(source)!r}"
        if path.suffix.lower() in _CONTAINERS:
            raise MediaError(
                f"Cannot read {name}: films of {path.suffix} are not decoded. Expected an animation (GIF, WebP, APNG) "
                f"or a folder of frames. Make one: `ffmpeg -i {path.name} -vf fps=2 -f apng {path.stem}.png`."
            )
        if not path.is_dir():
            return name, *_animation(path, name, limits)
        files = (one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        return name, sorted(files, key=_by_number), None
    if isinstance(source, np.ndarray) and source.ndim != 4:
        raise MediaError(
            f"Cannot read a video in an array with the shape {source.shape}. Expected (frames, height, width, "
            "channels). Stack its frames, or give a single picture as one (images, --image)."
        )
    if not isinstance(source, Sequence | np.ndarray):
        raise MediaError(
            f"Cannot read a video: it is {type(source).__name__}. Expected a path, the bytes of an animation, a list "
            "of pictures or an array. Give one of these."
        )
    return "a video", list(source), None


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Order names as people do: 2.png before 10.png."""
    return [(int(one), "") if one.isdigit() else (-1, one) for one in _DIGITS.split(path.name)]


def _animation(
    source: Path | bytes, name: str, limits: ImageLimits
) -> tuple[list[Any], float | None]:
    """Return the frames of a file, and how many a second takes, where it says."""
    first = read_image(source, limits)  # refuses all that is no picture
    from PIL import Image, ImageSequence

    content = source if isinstance(source, bytes) else source.read_bytes()
    with Image.open(BytesIO(content), formats=FORMATS) as image:
        count = getattr(image, "n_frames", 1)
        if count > limits.frames:
            raise MediaError(_too_many(name, count, limits))
        if count * first.shape[0] * first.shape[1] > limits.pixels:
            raise MediaError(_too_large(name, count, limits))
        frames, milliseconds = [], 0.0
        try:
            for frame in ImageSequence.Iterator(image):
                frames.append(frame.copy())
                milliseconds += float(frame.info.get("duration", 0))
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise MediaError(
                f"Cannot read {name}: frame {len(frames) + 1} of {count} is damaged or cut short. Expected a whole "
                "animation. Get the file again."
            ) from error
    return frames, count * 1000 / milliseconds if milliseconds else None


def _too_many(name: str, count: int, limits: ImageLimits) -> str:
    return f"Cannot read {name}: it has {count:,} frames. Expected at most {limits.frames:,}. Give fewer."


def _too_large(name: str, count: int, limits: ImageLimits) -> str:
    return (
        f"Cannot read {name}: its {count} frames have too many pixels. Expected at most {limits.pixels:,} in all. Give "
        "fewer frames, or smaller ones."
    )


@dataclass(frozen=True)
class VideoProcessor:
    """How a video becomes the arrays that a model takes.

    Attributes:
        settings: Of transformers' processor, with sizes by name.
    """

    settings: Mapping[str, Any]

    def __call__(self, source: Video, limits: ImageLimits = LIMITS) -> Arrays:
        """Make arrays of one video: its patches, `image_grid_thw` (1, 3), and `second_per_grid_ts` (1,).

        Raises:
            MediaError: It cannot be read, or its frames cannot be sampled as the checkpoint says.
        """
        video = read_video(source, limits)
        chosen = self._sample(video)
        fps = _FPS if video.fps is None else len(chosen) / len(video.pictures) * video.fps
        frames = np.stack([self._numbers(video.pictures[one], len(chosen)) for one in chosen])
        pixels, grid = patches_of_frames(frames, self.settings)
        return {
            "pixel_values": pixels,
            "image_grid_thw": np.array([grid], np.int64),
            "second_per_grid_ts": np.array(
                [self.settings["temporal_patch_size"] / fps], np.float32
            ),
        }

    def _sample(self, video: Frames) -> Sequence[int]:
        """Choose frames at equal distances, as many as the checkpoint says."""
        told, total = self.settings, len(video.pictures)
        wanted: Any = told.get("num_frames")
        each_second: Any = told.get("fps")
        deep = told["temporal_patch_size"]
        if not told["do_sample_frames"] or (wanted is each_second is None):
            return range(total)
        if wanted is not None:
            count = round(wanted / deep) * deep
        elif video.fps is None:
            raise MediaError(
                f"Cannot sample {video.name}: its {total} frames have no times, and the checkpoint takes {each_second} "
                "frames of each second. Expected an animation, which says them. Give a GIF, WebP or APNG."
            )
        else:
            most = math.floor(min(told["max_frames"], total) / deep) * deep
            some = min(max(total / video.fps * each_second, told["min_frames"]), most, total)
            count = math.floor(some / deep) * deep
        if not 0 < count <= total:
            raise MediaError(
                f"Cannot sample {video.name}: it has {total} frames. Expected at least {max(count, deep)}, which the "
                "checkpoint takes of it. Give a longer one."
            )
        steps = np.arange(0, total, total / count, dtype=np.float32)
        return [int(one) for one in steps]

    def _numbers(self, image: Pixels, frames: int) -> NDArray[np.float32]:
        """Resize, scale and normalize a frame of so many: (3, height, width)."""
        told, size = self.settings, self.settings["size"]
        if told["do_resize"]:
            factor, most = told["patch_size"] * told["merge_size"], size["longest_edge"]
            if told.get("cap_pixels_per_frame"):
                every = int(told["max_video_tokens"] * factor * factor * 0.9)
                share = every * told["temporal_patch_size"] // frames
                most = max(min(most, share), int(size["shortest_edge"] * 1.05))
            wanted = smart_size(image, factor, size["shortest_edge"], most)
            image = resize(image, *wanted, told["resample"])
        values = image.transpose(2, 0, 1).astype(np.float32)
        scale = told["rescale_factor"] if told["do_rescale"] else 1.0
        if not told["do_normalize"]:
            return values * np.float32(scale)
        # In one step, as transformers does with tensors.
        mean, std = (
            np.asarray(told[name], np.float32).reshape(3, 1, 1) * np.float32(1 / scale)
            for name in ("image_mean", "image_std")
        )
        normal: NDArray[np.float32] = (values - mean) / std
        return normal


def load_video_processor(folder: Path) -> VideoProcessor:
    """Read how a checkpoint or a package prepares videos; where it says nothing of them, as it does pictures.

    Raises:
        CheckpointError: There is nothing to read.
        UnsupportedModelError: Nothing here computes what this kind does.
    """
    for file, part in (
        ("processor_config.json", "video_processor"),
        ("video_preprocessor_config.json", ""),
        ("preprocessor_config.json", ""),
    ):
        if not (folder / file).is_file():
            continue
        document = json.loads((folder / file).read_text(encoding="utf-8"))
        if document := document.get(part) if part else document:
            kind = document.get("video_processor_type", _KIND)
            if kind != _KIND:
                raise UnsupportedModelError(
                    f"Videos cannot be processed as {kind!r} does. Expected {_KIND}. Process them with transformers, "
                    "and give the arrays."
                )
            given = {name: value for name, value in document.items() if value is not None}
            return VideoProcessor(standard({**_SETTINGS, **given}))
    raise CheckpointError(
        f"Cannot tell what {folder} makes of videos: it has no settings of a processor. Expected "
        "video_preprocessor_config.json. Get the whole checkpoint."
    )
