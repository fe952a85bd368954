# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's processor for videos: its JSON in, and videos made into the arrays that its model takes.

Sampling, sizes and numbers are those of transformers, whose resizing is torchvision's; here it is Pillow's, as of
pictures. Each kind is a row of `KINDS`; an unknown one is refused by name. Frames that come without times count as 24 a
second, as there.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import PROCESSORS, standard
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import LIMITS, ImageLimits, Pixels
from qeff_zoo.media.patch_rules import patches_of_frames, size_of_frames, smart_size
from qeff_zoo.media.pixels import cropped_as_asked, resize
from qeff_zoo.media.videos import Frames, Video, read_video

Settings: TypeAlias = Mapping[str, Any]

_USUAL = "Qwen2VLVideoProcessor"
_FPS = 24.0  # of frames without times
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SETTINGS = {
    **PROCESSORS["Qwen2VLImageProcessor"][1],
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4, "max_frames": 768, "do_sample_frames": False, "max_video_tokens": 128_000,
}  # fmt: skip


# --- which frames ----------------------------------------------------------------------------------------------------


def _at_equal_steps(video: Frames, told: Settings) -> Sequence[int]:
    """Qwen2-VL: as many as asked for, or so many of each second."""
    total, deep = len(video.pictures), told["temporal_patch_size"]
    wanted: Any = told.get("num_frames")
    each_second: Any = told.get("fps")
    if wanted is each_second is None:
        return range(total)
    if wanted is not None:
        count = round(wanted / deep) * deep
    elif video.fps is None:
        raise _no_times(video, each_second)
    else:
        most = math.floor(min(told["max_frames"], total) / deep) * deep
        some = min(max(total / video.fps * each_second, told["min_frames"]), most, total)
        count = math.floor(some / deep) * deep
    if not 0 < count <= total:
        raise _too_few(video, max(count, deep))
    steps = np.arange(0, total, total / count, dtype=np.float32)
    return [int(one) for one in steps]


def _from_first_to_last(video: Frames, told: Settings) -> Sequence[int]:
    """Qwen3-VL: so many of each second, the first and the last among them."""
    total = len(video.pictures)
    count = int(total / (video.fps or _FPS) * told["fps"])
    count = min(max(count, told["min_frames"]), told["max_frames"], total)
    return [int(one) for one in np.linspace(0, total - 1, count).round()]


def _in_the_middle(video: Frames, told: Settings) -> Sequence[int]:
    """InternVL: the middle of each of so many parts, or parts that begin at `initial_shift`."""
    total, count, each_second = len(video.pictures), told.get("num_frames"), told.get("fps")
    if count is None and each_second is not None:
        if video.fps is None:
            raise _no_times(video, each_second)
        count = int(total / video.fps * each_second)
    if count is None:
        return range(total)
    if not 0 < count <= total:
        raise _too_few(video, max(count, 1))
    shift = told["initial_shift"]
    start = total / count / 2 if shift is True else float(shift)
    # float32, as there: what is nearly the next frame is that one
    steps = np.arange(start, total, total / count).astype(np.float32)
    return [int(one) for one in steps if one < total]


def _no_times(video: Frames, each_second: float) -> MediaError:
    return MediaError(
        f"Cannot sample {video.name}: its {len(video.pictures)} frames have no times, and the checkpoint takes "
        f"{each_second} frames of each second. Expected an animation, which says them. Give a GIF, WebP or APNG."
    )


def _too_few(video: Frames, expected: int) -> MediaError:
    return MediaError(
        f"Cannot sample {video.name}: it has {len(video.pictures)} frames. Expected at least {expected}, which the "
        "checkpoint takes of it. Give a longer one."
    )


# --- of what size ----------------------------------------------------------------------------------------------------


def _each_by_itself(image: Pixels, frames: int, told: Settings) -> tuple[int, int]:
    """Qwen2-VL: pixels of a frame lie between two numbers."""
    size, factor = told["size"], told["patch_size"] * told["merge_size"]
    most = size["longest_edge"]
    if told.get("cap_pixels_per_frame"):
        every = int(told["max_video_tokens"] * factor * factor * 0.9)
        share = every * told["temporal_patch_size"] // frames
        most = max(min(most, share), int(size["shortest_edge"] * 1.05))
    return smart_size(image, factor, size["shortest_edge"], most)


def _all_together(image: Pixels, frames: int, told: Settings) -> tuple[int, int]:
    """Qwen3-VL: pixels of all frames lie between two numbers."""
    size, factor = told["size"], told["patch_size"] * told["merge_size"]
    most = size["longest_edge"]
    if told.get("cap_pixels_per_frame"):
        share = min(told["max_video_tokens"] * factor * factor, most // frames)
        most = max(share, int(size["shortest_edge"] * 1.05)) * frames
    deep = told["temporal_patch_size"]
    return size_of_frames(image, factor, size["shortest_edge"], most, (frames, deep))


def _one_size(image: Pixels, frames: int, told: Settings) -> tuple[int, int]:
    return told["size"]["height"], told["size"]["width"]


# --- and when they are -----------------------------------------------------------------------------------------------


def _seconds_of_steps(video: Frames, chosen: Sequence[int], told: Settings) -> Arrays:
    fps = _FPS if video.fps is None else len(chosen) / len(video.pictures) * video.fps
    return {"second_per_grid_ts": np.array([told["temporal_patch_size"] / fps], np.float32)}


def _times(video: Frames, chosen: Sequence[int], told: Settings) -> Arrays:
    """Say of each step when it is: between its first frame and its last."""
    deep = told["temporal_patch_size"]
    filled = [*chosen, *[chosen[-1]] * (-len(chosen) % deep)]
    fps = video.fps or _FPS
    ends = zip(filled[::deep], filled[deep - 1 :: deep], strict=True)
    return {"timestamps": np.array([(first / fps + last / fps) / 2 for first, last in ends])}


def _patches(frames: NDArray[np.float32], told: Settings) -> Arrays:
    pixels, grid = patches_of_frames(frames, told)
    return {"pixel_values": pixels, "image_grid_thw": np.array([grid], np.int64)}


def _pictures(frames: NDArray[np.float32], told: Settings) -> Arrays:
    """Give frames as pictures, one by one."""
    return {"pixel_values": frames}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of `KINDS`.

    Args:
        settings: Where a checkpoint says nothing else.
        sample: Chooses frames.
        size: Height and width of a frame, of so many.
        tell: What a model is told beside patches and their grid.
        fewest: Frames that a video must have.
        arrange: Makes arrays of frames (n, 3, height, width).
    """

    settings: Settings
    sample: Callable[[Frames, Settings], Sequence[int]]
    size: Callable[[Pixels, int, Settings], tuple[int, int]]
    tell: Callable[[Frames, Sequence[int], Settings], Arrays]
    fewest: int = 1
    arrange: Callable[[NDArray[np.float32], Settings], Arrays] = _patches


#: By the name of transformers' class.
KINDS: Mapping[str, Kind] = {
    _USUAL: Kind(
        settings=_SETTINGS, sample=_at_equal_steps, size=_each_by_itself, tell=_seconds_of_steps
    ),
    "Qwen3VLVideoProcessor": Kind(
        settings={
            **_SETTINGS, **_HALF, "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
            "patch_size": 16, "do_sample_frames": True, "fps": 2, "max_video_tokens": 768,
        },
        sample=_from_first_to_last, size=_all_together, tell=_times, fewest=2,
    ),
    "InternVLVideoProcessor": Kind(
        settings={
            **PROCESSORS["GotOcr2ImageProcessor"][1], "do_sample_frames": False, "initial_shift": True,
            "temporal_patch_size": 1,
        },
        sample=_in_the_middle, size=_one_size, tell=_times, arrange=_pictures,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class VideoProcessor:
    """How a video becomes the arrays that a model takes.

    Attributes:
        kind: What of it is code.
        settings: Of transformers' processor, with sizes by name.
    """

    kind: Kind
    settings: Settings

    def __call__(self, source: Video, limits: ImageLimits = LIMITS) -> Arrays:
        """Make arrays of one video: its patches and `image_grid_thw` (1, 3), or frames; and what its kind says of time.

        Raises:
            MediaError: It cannot be read, or its frames cannot be sampled as the checkpoint says.
        """
        video, told = read_video(source, limits), self.settings
        if len(video.pictures) < self.kind.fewest:
            raise _too_few(video, self.kind.fewest)
        chosen: Sequence[int] = range(len(video.pictures))
        if told["do_sample_frames"]:
            chosen = self.kind.sample(video, told)
            if len(chosen) < self.kind.fewest:
                raise _too_few(video, self.kind.fewest)
        frames = np.stack([self._numbers(video.pictures[one], len(chosen)) for one in chosen])
        return {**self.kind.arrange(frames, told), **self.kind.tell(video, chosen, told)}

    def _numbers(self, image: Pixels, frames: int) -> NDArray[np.float32]:
        """Resize, scale and normalize a frame of so many: (3, height, width)."""
        told = self.settings
        if told["do_resize"]:
            image = resize(image, *self.kind.size(image, frames, told), told["resample"])
        if self.kind.arrange is _pictures:
            image = cropped_as_asked(image, told)
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


def load_video_processor(folder: Path, usual: str = "") -> VideoProcessor:
    """Read how a checkpoint or a package prepares videos; where it says nothing of them, as it does pictures.

    Args:
        folder: The checkpoint or package.
        usual: transformers' class, where none is named; nothing for Qwen2-VL's.

    Raises:
        CheckpointError: There is nothing to read, or it contradicts itself.
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
            return _processor(document, folder / file, usual or _USUAL)
    raise CheckpointError(
        f"Cannot tell what {folder} makes of videos: it has no settings of a processor. Expected "
        "video_preprocessor_config.json. Get the whole checkpoint."
    )


def _processor(document: Mapping[str, Any], file: Path, usual: str) -> VideoProcessor:
    name = document.get("video_processor_type", usual)
    if name not in KINDS:
        raise UnsupportedModelError(
            f"Videos cannot be processed as {name!r} does. Expected {', '.join(KINDS)}. Process them with "
            "transformers, and give the arrays."
        )
    kind = KINDS[name]
    settings = {**kind.settings, **{key: one for key, one in document.items() if one is not None}}
    if None not in (settings.get("num_frames"), settings.get("fps")):
        raise CheckpointError(
            f"Cannot sample videos as {file} says: it takes {settings['num_frames']} frames of each (num_frames), and "
            f"{settings['fps']} of each second (fps). Expected one of the two. Remove the other."
        )
    return VideoProcessor(kind, standard(settings))
