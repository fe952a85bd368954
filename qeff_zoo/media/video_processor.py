# SPDX-License-Identifier: Apache-2.0
"""Video processor of a checkpoint: its JSON in, and the arrays that its model takes for videos out.

Sampling, sizes and values are those of transformers, which resizes with torchvision; here Pillow resizes, as for
images. Each kind is an entry of `KINDS`; an unknown kind is rejected by name. Frames without timestamps count as 24
per second, as there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.media.families.minicpm import frames_and_slices
from qeff_zoo.media.families.molmo import frames_as_crops
from qeff_zoo.media.image_processor import PROCESSORS, standard
from qeff_zoo.media.image_rules import Arrays, frames_as_squares
from qeff_zoo.media.images import LIMITS, ImageLimits, Pixels
from qeff_zoo.media.interpolation import resize_aliased
from qeff_zoo.media.patch_rules import patches_of_frames, size_of_frames, smart_size, unit_of
from qeff_zoo.media.pixels import crop_to_size, resize_across, shortest_edge
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.media.videos import Frames, Video, reading, too_large

from . import frame_rules

Settings: TypeAlias = Mapping[str, Any]

_USUAL = "Qwen2VLVideoProcessor"
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SETTINGS = {
    **PROCESSORS["Qwen2VLImageProcessor"][1],
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4, "max_frames": 768, "do_sample_frames": False, "max_video_tokens": 128_000,
}  # fmt: skip
_GLM4V = {
    **PROCESSORS["Glm4vImageProcessor"][1],
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000},
    "do_sample_frames": True, "fps": 2, "max_duration": 300,
}  # fmt: skip
#: Maximum mean difference, of 255, between a merged patch and its predecessor in time for it to be dropped.
_ANOTHER = 0.1
_TENTHS = ("<|begin_of_image|>", "<|end_of_image|>{:.1f} seconds")


# --- sizes -----------------------------------------------------------------------------------------------------------


def _each_by_itself(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    """Qwen2-VL: the pixels of each frame lie between two numbers."""
    size, factor = settings["size"], settings["patch_size"] * settings["merge_size"]
    most = size["longest_edge"]
    if settings.get("cap_pixels_per_frame"):
        every = int(settings["max_video_tokens"] * factor * factor * 0.9)
        share = every * settings["temporal_patch_size"] // frames
        most = max(min(most, share), int(size["shortest_edge"] * 1.05))
    return smart_size(image, factor, size["shortest_edge"], most)


def _part_of_all(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    """VideoLLaMA 3: the pixels of each frame are at least one number, those of all frames at most another."""
    size = settings["size"]
    return smart_size(
        image, unit_of(settings), size["shortest_edge"], size["longest_edge"] // frames
    )


def _all_together(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    """Qwen3-VL: the pixels of all frames together lie between two numbers."""
    size, factor = settings["size"], unit_of(settings)
    most = size["longest_edge"]
    if settings.get("cap_pixels_per_frame"):
        share = min(settings["max_video_tokens"] * factor * factor, most // frames)
        most = max(share, int(size["shortest_edge"] * 1.05)) * frames
    deep = settings["temporal_patch_size"]
    return size_of_frames(image, factor, size["shortest_edge"], most, (frames, deep))


def _shortest_side(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    """LLaVA-NeXT-Video and Video-LLaVA: the shorter side in the size to which frames are then cropped."""
    size = settings["size"]
    if "shortest_edge" in size:
        return shortest_edge(image, size["shortest_edge"])
    return size["height"], size["width"]


def _larger_than_crop(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    """V-JEPA 2: the shorter side in 8/7 of the height that frames are cropped to; `size` has no effect."""
    return shortest_edge(image, int(settings["crop_size"]["height"] * 256 / 224))


def _one_size(image: Pixels, frames: int, settings: Settings) -> tuple[int, int]:
    return settings["size"]["height"], settings["size"]["width"]


# --- timestamps ------------------------------------------------------------------------------------------------------


def _seconds_of_steps(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    fps = frame_rules.FPS if video.fps is None else len(chosen) / len(video.frames) * video.fps
    return {"second_per_grid_ts": np.array([settings["temporal_patch_size"] / fps], np.float32)}


def _seconds_that_count(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    """Return the duration of a step by the frame rate that Qwen Omni's processor assumes, not the video's."""
    seconds = settings["temporal_patch_size"] / settings["counted_fps"]
    return {"second_per_grid_ts": np.array([seconds], np.float32)}


def _nothing(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    return {}


def _times(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    """Return the timestamp of each temporal step: midway between its first and its last frame."""
    deep = settings["temporal_patch_size"]
    filled = [*chosen, *[chosen[-1]] * (-len(chosen) % deep)]
    fps = video.fps or frame_rules.FPS
    ends = zip(filled[::deep], filled[deep - 1 :: deep], strict=True)
    return {"timestamps": np.array([(first / fps + last / fps) / 2 for first, last in ends])}


def _times_of_beginnings(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    """Return the timestamp of each temporal step: that of its first frame."""
    fps = video.fps or frame_rules.FPS
    return {
        "timestamps": np.array([one / fps for one in chosen[:: settings["temporal_patch_size"]]])
    }


def _times_by_set_rate(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    """Return the timestamp of each frame; the default frame rate is the assumed one of the processor, else `fps`.

    Else it is the maximum frame rate of sampling.
    """
    fps = video.fps or settings.get("counted_fps") or frame_rules.taken_of_a_second(settings)
    return {"timestamps": np.array([one / fps for one in chosen])}


def _times_and_duration(video: Frames, chosen: Sequence[int], settings: Settings) -> Arrays:
    """Return the timestamp of each frame, and the duration of a video with a frame rate."""
    fps = video.fps or frame_rules.FPS
    whole = {"duration": np.array(len(video.frames) / video.fps)} if video.fps else {}
    return {"timestamps": np.array([one / fps for one in chosen]), **whole}


def _patches(frames: NDArray[np.float32], settings: Settings) -> Arrays:
    pixels, grid = patches_of_frames(frames, settings)
    return {"pixel_values": pixels, "image_grid_thw": np.array([grid], np.int64)}


def _with_step(arrays: Arrays, part: Arrays, step: int, steps: int) -> Arrays:
    """Return the patches of a video with those of a further step; memory for all of them is taken at the first."""
    if steps == 1:
        return part
    rows = part["pixel_values"]
    if not arrays:
        pixels = np.empty((steps * len(rows), *rows.shape[1:]), np.float32)
        arrays = {"pixel_values": pixels, "image_grid_thw": part["image_grid_thw"] * [steps, 1, 1]}
    arrays["pixel_values"][step * len(rows) : (step + 1) * len(rows)] = rows
    return arrays


def _separate_frames(frames: NDArray[np.float32], settings: Settings) -> Arrays:
    """Return frames as separate images."""
    return {"pixel_values": frames}


def _aliased(image: Pixels, height: int, width: int, resample: int) -> Pixels:
    return resize_aliased(image, height, width)


def _together(frames: NDArray[np.float32], settings: Settings) -> Arrays:
    """Return frames as one video, whose image tokens come from all frames."""
    return {"pixel_values": frames, "of_video": np.array(1)}


def _without_repeats(frames: NDArray[np.float32], settings: Settings) -> Arrays:
    """VideoLLaMA 3: patches, and a mask of those that differ from the frame before; each frame keeps at least one."""
    pixels, grid = patches_of_frames(frames, settings)
    squares = pixels.reshape(grid[0], -1, pixels.shape[-1] * settings["merge_size"] ** 2)
    kept = np.ones(squares.shape[:2], bool)
    if settings["use_token_compression"]:
        kept[1:] = np.abs(squares[1:] - squares[:-1]).mean(-1) * 255 > _ANOTHER
        kept[~kept.any(1), 0] = True
    return {
        "pixel_values_videos": pixels, "video_grid_thw": np.array([grid], np.int64),
        "video_merge_sizes": np.array([settings["merge_size"]]), "video_compression_mask": kept.reshape(-1),
    }  # fmt: skip


def _apart(frames: NDArray[np.float32], settings: Settings) -> Arrays:
    """Return frames as one video, for a separate program."""
    return {"pixel_values_videos": frames[None]}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Kind of video processor, an entry of `KINDS`.

    Args:
        settings: Default settings.
        sample: A function that selects frames.
        times: A function that returns the model's inputs beside patches and their grid.
        size: A function that returns the height and width of a frame, given the number of frames.
        fewest: Minimum number of frames in a video.
        stamp: Text that the processor writes around a temporal step, as `ImageEncoder.stamp`; empty if recipes set it.
        counts: Whether `num_frames` sets the number of frames, in place of `fps`; else it does not.
        arrange: A function that returns the arrays of frames (n, 3, height, width).
        fixed: Settings that a checkpoint's file cannot override.
        resize: A function that resizes a frame.
        cut: A function that returns the arrays of unprocessed frames, if each becomes several images, or is resized
            twice; it replaces `size`, `resize` and `arrange`.
    """

    settings: Settings
    sample: Callable[[Frames, Settings], Sequence[int]]
    times: Callable[[Frames, Sequence[int], Settings], Arrays]
    size: Callable[[Pixels, int, Settings], tuple[int, int]] = _one_size
    fewest: int = 1
    stamp: tuple[str, ...] = ()
    counts: bool = True
    arrange: Callable[[NDArray[np.float32], Settings], Arrays] = _patches
    fixed: Settings = field(default_factory=dict)
    resize: Callable[[Pixels, int, int, int], Pixels] = resize_across
    cut: Callable[[Sequence[Pixels], Settings], Arrays] | None = None


def _omni(square: int, fps: float) -> Kind:
    """Return Qwen2-VL's kind with the settings of an Omni processor.

    Args:
        square: Pixels on a side of a merged patch.
        fps: Frame rate by which times are counted.
    """
    least, most = (count * square**2 for count in (128, 768))
    size = {"shortest_edge": least, "longest_edge": most}
    return Kind(
        settings=_SETTINGS, sample=frame_rules.at_equal_steps, size=_each_by_itself, times=_seconds_that_count,
        fixed={"size": size, "min_pixels": least, "max_pixels": most, "counted_fps": fps},
    )  # fmt: skip


#: Processors of whole models that override the video processor class of the checkpoint.
WHOLE: Mapping[str, Kind] = {
    "Qwen2_5OmniProcessor": _omni(28, 2.0),
    "Qwen3OmniMoeProcessor": _omni(32, 1.0),
}
_CUT = Kind(
    settings={**PROCESSORS["CLIPImageProcessor"][1], "do_sample_frames": False},
    sample=frame_rules.at_whole_steps, size=_shortest_side, times=_nothing, arrange=_apart,
)  # fmt: skip
#: Cropped frames in ImageNet's mean and deviation.
_IN_IMAGENET = {
    **_CUT.settings,
    **PROCESSORS["SegformerImageProcessor"][1],
    "size": {"shortest_edge": 224},
}
#: Kinds by the name of transformers' class.
KINDS: Mapping[str, Kind] = {
    _USUAL: Kind(
        settings=_SETTINGS, sample=frame_rules.at_equal_steps, size=_each_by_itself, times=_seconds_of_steps
    ),
    "Qwen3VLVideoProcessor": Kind(
        settings={
            **_SETTINGS, **_HALF, "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
            "patch_size": 16, "do_sample_frames": True, "fps": 2, "max_video_tokens": 768,
        },
        sample=frame_rules.from_first_to_last, size=_all_together, times=_times, fewest=2,
    ),
    "Glm4vVideoProcessor": Kind(
        settings=_GLM4V, sample=frame_rules.from_second_to_second, size=_all_together, times=_times_of_beginnings,
        fewest=2, stamp=("<|begin_of_image|>", "<|end_of_image|>{second}"), counts=False,
    ),
    "Glm46VVideoProcessor": Kind(
        settings=_GLM4V, sample=frame_rules.fewer_of_longer, size=_all_together, times=_times_of_beginnings,
        fewest=2, stamp=_TENTHS, counts=False,
    ),
    "GlmgaVideoProcessor": Kind(
        settings={
            **_GLM4V, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 55790}, "max_frames": 640,
        },
        sample=frame_rules.so_many_of_a_second, size=_all_together, times=_times_of_beginnings,
        fewest=2, stamp=_TENTHS, counts=False,
    ),
    "InternVLVideoProcessor": Kind(
        settings={
            **PROCESSORS["GotOcr2ImageProcessor"][1], "do_sample_frames": False, "initial_shift": True,
            "temporal_patch_size": 1,
        },
        sample=frame_rules.in_the_middle, size=_one_size, times=_times, arrange=_separate_frames,
    ),
    "LlavaOnevisionVideoProcessor": Kind(
        settings={**PROCESSORS["LlavaOnevisionImageProcessor"][1], "do_sample_frames": False},
        sample=frame_rules.at_whole_steps, times=_nothing, arrange=_together,
    ),
    "LlavaNextVideoVideoProcessor": _CUT,
    "MiniCPMV4_6VideoProcessor": Kind(
        settings={
            **PROCESSORS["MiniCPMV4_6ImageProcessor"][1], "do_sample_frames": True, "max_num_frames": 128,
            "stack_frames": 1, "temporal_patch_size": 1,
        },
        sample=frame_rules.one_of_a_second, times=_times, cut=frames_and_slices,
    ),
    "Molmo2VideoProcessor": Kind(
        settings={
            **PROCESSORS["Molmo2ImageProcessor"][1], "pooling_size": (3, 3), "num_frames": 64, "max_fps": 2,
            "do_sample_frames": True, "temporal_patch_size": 1, "do_rescale": False, "do_normalize": False,
        },
        sample=frame_rules.no_more_of_a_second, size=_one_size, times=_times_by_set_rate, arrange=frames_as_crops,
        fixed={"do_resize": True}, resize=_aliased,
    ),
    "SmolVLMVideoProcessor": Kind(
        settings=PROCESSORS["SmolVLMImageProcessor"][1], sample=frame_rules.between_first_and_last,
        times=_times_and_duration, counts=False, cut=frames_as_squares, fixed={"do_sample_frames": True},
    ),
    "VideoLlama3VideoProcessor": Kind(
        settings={
            **_SETTINGS, **_HALF, "temporal_patch_size": 1, "max_frames": 180, "use_token_compression": True,
        },
        sample=frame_rules.at_equal_steps, size=_part_of_all, times=_times_by_set_rate, arrange=_without_repeats,
        fixed={"counted_fps": 1.0},
    ),
    "VideoLlavaVideoProcessor": _CUT,
    "VideoMAEVideoProcessor": replace(_CUT, settings={**_IN_IMAGENET, **_HALF}),
    "TimesformerVideoProcessor": replace(_CUT, settings=_IN_IMAGENET),
    "VivitVideoProcessor": replace(
        _CUT,
        settings={**_IN_IMAGENET, **_HALF, "size": {"shortest_edge": 256}, "rescale_factor": 1 / 127.5},
        fixed={"offset": True},
    ),
    "VJEPA2VideoProcessor": replace(
        _CUT,
        settings={**_IN_IMAGENET, "crop_size": {"height": 256, "width": 256}}, size=_larger_than_crop,
    ),
    **WHOLE,
}  # fmt: skip


@dataclass(frozen=True)
class VideoProcessor:
    """Video processor: how a video becomes the arrays that a model takes.

    Attributes:
        kind: Rules of the processor's class.
        settings: Settings of transformers' processor, with sizes by name.
    """

    kind: Kind
    settings: Settings

    def __call__(self, source: Video, limits: ImageLimits = LIMITS) -> Arrays:
        """Return the arrays of one video at once, see `processing`."""
        return finished(self.processing(source, limits))

    def processing(self, source: Video, limits: ImageLimits = LIMITS) -> Steps[Arrays]:
        """Process one video, and pause after each frame.

        Returns:
            Patches and `image_grid_thw` (1, 3), or frames; and its kind's time inputs.

        Raises:
            MediaError: If the video cannot be read, or its frames cannot be sampled by the checkpoint's settings.
        """
        video, settings = (yield from reading(source, limits)), self.settings
        chosen = self._chosen(video)
        if self.kind.cut:
            images = yield from self._images(video, chosen, limits)
            cut = self.kind.cut(images, settings)
        else:
            cut = yield from self._arranged(video, chosen, limits)
        return {**cut, **self.kind.times(video, chosen, settings)}

    def _arranged(self, video: Frames, chosen: Sequence[int], limits: ImageLimits) -> Steps[Arrays]:
        """Return the arrays of sampled frames; patches of each temporal step as soon as its frames are decoded."""
        is_cut = self.kind.arrange is _patches
        deep = self.settings["temporal_patch_size"] if is_cut else len(chosen)
        arrays: Arrays = {}
        frames: NDArray[np.float32] = np.empty(0, np.float32)
        for number, one in enumerate(chosen):
            image = yield from video.reaching(one)
            if not number:
                self._check_room(image, len(chosen), video.name, limits)
            values = self._numbers(image, len(chosen))
            if number % deep == 0:
                frames = np.empty((min(deep, len(chosen) - number), *values.shape), np.float32)
            frames[number % deep] = values
            if number % deep == len(frames) - 1:
                part = self.kind.arrange(frames, self.settings)
                arrays = _with_step(arrays, part, number // deep, -(-len(chosen) // deep))
            yield
        return arrays

    def beginnings(self, video: Frames, limits: ImageLimits = LIMITS) -> tuple[int, Arrays, Arrays]:
        """Return the number of temporal steps of a video, and arrays in the shapes of its first step and its first two.

        Args:
            video: Frames of the video, of which only the sizes count.
            limits: Maximum sizes, see `processing`.

        Raises:
            MediaError: If its frames cannot be sampled by the checkpoint's settings, or have too many pixels.
        """
        count, deep = len(self._chosen(video)), self.settings.get("temporal_patch_size", 1)
        image = video.frames[0]
        if self.kind.cut:
            one, two = (self.kind.cut([image] * steps * deep, self.settings) for steps in (1, 2))
        else:
            self._check_room(image, count, video.name, limits)
            frame = self._numbers(image, count)
            one, two = (
                self.kind.arrange(np.stack([frame] * steps * deep), self.settings)
                for steps in (1, 2)
            )
        return -(-count // deep), one, two

    def _chosen(self, video: Frames) -> Sequence[int]:
        """Return the indices of sampled frames."""
        if len(video.frames) < self.kind.fewest:
            raise frame_rules.too_few(video, self.kind.fewest)
        if not self.settings["do_sample_frames"]:
            return range(len(video.frames))
        chosen = self.kind.sample(video, self.settings)
        if len(chosen) < self.kind.fewest:
            raise frame_rules.too_few(video, self.kind.fewest)
        return chosen

    def _images(
        self, video: Frames, chosen: Sequence[int], limits: ImageLimits
    ) -> Steps[list[Pixels]]:
        """Return unprocessed frames."""
        images = list[Pixels]()
        for one in chosen:
            images.append((yield from video.reaching(one)))
            if len(chosen) * images[0].shape[0] * images[0].shape[1] > limits.pixels:
                raise too_large(video.name, len(chosen), limits)
        return images

    def _check_room(self, image: Pixels, count: int, name: str, limits: ImageLimits) -> None:
        """Check the number of pixels of all resized frames, before the second one is decoded."""
        height, width = image.shape[:2]
        if self.settings["do_resize"]:
            height, width = self.kind.size(image, count, self.settings)
        if count * height * width > limits.pixels:
            raise too_large(name, count, limits)

    def _numbers(self, image: Pixels, frames: int) -> NDArray[np.float32]:
        """Resize, rescale and normalize a frame of several: (3, height, width)."""
        settings = self.settings
        if settings["do_resize"]:
            image = self.kind.resize(
                image, *self.kind.size(image, frames, settings), settings["resample"]
            )
        if self.kind.arrange in (_separate_frames, _together, _apart):
            image = crop_to_size(image, settings)
        values = image.transpose(2, 0, 1).astype(np.float32)
        scale, least = settings["rescale_factor"] if settings["do_rescale"] else 1.0, 0.0
        if settings.get("offset") and settings["do_rescale"]:  # ViViT: from -1 to 1
            least = -1.0
        if not settings["do_normalize"]:
            return values * np.float32(scale) + np.float32(least)
        # In one step, as transformers does with tensors.
        mean, std = (
            np.asarray(numbers, np.float32).reshape(3, 1, 1) * np.float32(1 / scale)
            for numbers in (np.subtract(settings["image_mean"], least), settings["image_std"])
        )
        normal: NDArray[np.float32] = (values - mean) / std
        return normal


def load_video_processor(folder: Path, usual: str = "") -> VideoProcessor:
    """Return the video processor of a checkpoint or a package.

    Args:
        folder: The checkpoint or package.
        usual: transformers' class to use if none is named; empty for Qwen2-VL's.

    Raises:
        CheckpointError: If there is no file to read, or settings contradict one another.
        UnsupportedModelError: If this kind is not supported.
    """
    if document := _read(folder):
        return _processor(*document, usual or _USUAL)
    raise CheckpointError(
        f"Cannot preprocess videos for {folder}: it has no settings of a processor. Expected "
        "video_preprocessor_config.json. Get the whole checkpoint."
    )


def stamp_of(folder: Path, usual: str) -> tuple[str, ...]:
    """Return the text that a checkpoint's processor writes around temporal steps of videos; empty if recipes set it.

    Args:
        folder: The checkpoint or package.
        usual: transformers' class to use if none is named.
    """
    document, _ = _read(folder) or ({}, None)
    kind = KINDS.get(document.get("video_processor_type", usual))
    return kind.stamp if kind else ()


def _read(folder: Path) -> tuple[Mapping[str, Any], Path] | None:
    """Return the settings of a processor, and their file; None if there are none."""
    for file, part in (
        ("processor_config.json", "video_processor"),
        ("video_preprocessor_config.json", ""),
        ("preprocessor_config.json", ""),
    ):
        if not (folder / file).is_file():
            continue
        document = read_json(folder / file)
        settings = document.get(part) if part else document
        if settings:
            return settings, folder / file
    return None


def _processor(document: Mapping[str, Any], file: Path, usual: str) -> VideoProcessor:
    name = usual if usual in WHOLE else document.get("video_processor_type", usual)
    if name not in KINDS:
        raise UnsupportedModelError(
            f"Videos cannot be processed as {name!r} does. Expected {', '.join(KINDS)}. Process them with "
            "transformers, and give the arrays."
        )
    kind = KINDS[name]
    configured = {key: value for key, value in document.items() if value is not None}
    if sampling := configured.get("video_sampling"):
        sampled = {"num_frames": sampling["max_frames"], "fps": sampling["fps"]}
        configured = {"size": sampling["video_size"], **configured, **sampled}
    settings = {**kind.settings, **configured, **kind.fixed}
    if kind.counts and None not in (settings.get("num_frames"), settings.get("fps")):
        raise CheckpointError(
            f"Cannot sample videos as {file} says: it takes {settings['num_frames']} frames of each (num_frames), and "
            f"{settings['fps']} of each second (fps). Expected one of the two. Remove the other."
        )
    if (stacked := settings.get("stack_frames", 1)) > 1:
        raise UnsupportedModelError(
            f"Cannot sample videos as {file} says: it puts {stacked} frames of each second into one image "
            "(stack_frames). Expected 1. Process them with transformers, and give the arrays."
        )
    return VideoProcessor(kind, standard(settings))
