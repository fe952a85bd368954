# SPDX-License-Identifier: Apache-2.0
"""Sampling rules for videos: `(video, settings) -> indices` of the frames that a processor takes.

Frames without timestamps count as sampled already by rules that depend on seconds alone: all are taken, as
transformers does with `do_sample_frames=False`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.pixels import Settings
from qeff_zoo.media.videos import Frames

FPS = 24.0  # default for frames without timestamps
#: GLM-4.6V: steps per second, by maximum duration in seconds; and the maximum number of frames.
_EACH_SECOND = {30: 3, 300: 1, 2400: 0.5}
_MOST_FRAMES = 640


def at_equal_steps(video: Frames, settings: Settings) -> Sequence[int]:
    """Qwen2-VL: `num_frames` frames, or `fps` frames per second, in equal steps."""
    total, deep = len(video.frames), settings["temporal_patch_size"]
    wanted: Any = settings.get("num_frames")
    each_second: Any = settings.get("fps")
    if wanted is each_second is None:
        return range(total)
    if wanted is not None:
        count = round(wanted / deep) * deep
    elif video.fps is None:
        raise _no_times(video, each_second)
    else:
        most = math.floor(min(settings["max_frames"], total) / deep) * deep
        some = min(max(total / video.fps * each_second, settings["min_frames"]), most, total)
        count = math.floor(some / deep) * deep
    if not 0 < count <= total:
        raise too_few(video, max(count, deep))
    return _at_distances(total, count)


def from_first_to_last(video: Frames, settings: Settings) -> Sequence[int]:
    """Qwen3-VL: `fps` frames per second, including the first and the last."""
    total = len(video.frames)
    count = int(total / (video.fps or FPS) * settings["fps"])
    count = min(max(count, settings["min_frames"]), settings["max_frames"], total)
    return [int(one) for one in np.linspace(0, total - 1, count).round()]


def from_second_to_second(video: Frames, settings: Settings) -> Sequence[int]:
    """GLM-4.1V: the first frame at or after each of equal steps in time, up to `max_duration`."""
    total, each_second = len(video.frames), settings["fps"]
    if video.fps is None:
        return range(total)
    fps, duration = video.fps, total / video.fps
    if duration <= settings["max_duration"]:
        count = max(math.floor(duration * each_second), 1)
        at = [math.ceil(number * fps / each_second) for number in range(count)]
    elif (count := int(settings["max_duration"] * each_second)) >= total:
        at = [*range(total)]
    else:
        at = [math.ceil(one * fps) for one in np.linspace(0, duration, count)]
    return _each_once([min(one, total - 1) for one in at])


def fewer_of_longer(video: Frames, settings: Settings) -> Sequence[int]:
    """GLM-4.6V: fewer frames per second for longer videos, and 640 at most."""
    if video.fps is None:
        return range(len(video.frames))
    fps, duration = video.fps, len(video.frames) / video.fps
    long = min(duration, max(_EACH_SECOND))
    steps = next(each for most, each in _EACH_SECOND.items() if long <= most)
    each_second = steps * settings["temporal_patch_size"]
    count = min(int(long * steps * settings["temporal_patch_size"]), _MOST_FRAMES)
    total = len(video.frames)
    if total < count:
        return _each_once(_spread(0, total - 1, count))
    return _each_once(_filled(_by_time(total, fps, each_second, int(duration)), total, count))


def so_many_of_a_second(video: Frames, settings: Settings) -> Sequence[int]:
    """GLM-GA: `fps` frames per second, and `max_frames` at most."""
    each_second = settings["fps"]
    if video.fps is None:
        return range(len(video.frames))
    fps, duration = video.fps, len(video.frames) / video.fps
    count = min(int(duration * each_second), settings["max_frames"])
    total = len(video.frames)
    if total < count:
        at = [math.floor(number * total / count) for number in range(count)]
    else:
        at = _by_time(total, fps, each_second, duration - 1 / each_second)
    return _each_once(_filled(at, total, count))


def _by_time(total: int, fps: float, each_second: float, end: float) -> list[int]:
    """Return the first frame at or after each step in time, up to an end."""
    at, now, step = list[int](), 0.0, 1 / each_second
    for one in range(total):
        if one * (1 / fps) >= now:
            now += step
            at.append(one)
            if now >= end:
                break
    return at


def _filled(at: list[int], total: int, count: int) -> list[int]:
    """Return the required number of frames: the given ones, or others at equal distances."""
    if len(at) < count:
        return _spread(at[0], at[-1], count)
    return _spread(0, total - 1, count) if len(at) > count else at


def _each_once(chosen: Sequence[int]) -> list[int]:
    """Return frames without duplicates; the last is repeated if their number is odd."""
    once = [*dict.fromkeys(chosen)]
    return once + once[-1:] if len(once) % 2 else once


def _spread(first: int, last: int, count: int) -> list[int]:
    indices: list[int] = np.linspace(first, last, count, dtype=int).tolist()
    return indices


def in_the_middle(video: Frames, settings: Settings) -> Sequence[int]:
    """InternVL: the middle of each of `num_frames` equal parts, or parts that begin at `initial_shift`."""
    total, count, each_second = len(video.frames), settings.get("num_frames"), settings.get("fps")
    if count is None and each_second is not None:
        if video.fps is None:
            raise _no_times(video, each_second)
        count = int(total / video.fps * each_second)
    if count is None:
        return range(total)
    if not 0 < count <= total:
        raise too_few(video, max(count, 1))
    shift = settings["initial_shift"]
    start = total / count / 2 if shift is True else float(shift)
    return _at_distances(total, count, start)


def at_whole_steps(video: Frames, settings: Settings) -> Sequence[int]:
    """Transformers' default rule for videos: `num_frames` frames, or `fps` frames per second."""
    total, count, each_second = len(video.frames), settings.get("num_frames"), settings.get("fps")
    if count is None and each_second is not None:
        if video.fps is None:
            raise _no_times(video, each_second)
        count = max(1, int(total / video.fps * each_second))
    if count is None:
        return range(total)
    if count > total:
        raise too_few(video, count)
    return [number * total // count for number in range(count)]


def between_first_and_last(video: Frames, settings: Settings) -> Sequence[int]:
    """SmolVLM: `fps` frames per second, `num_frames` at most; without the first and last second of a long video.

    Frames without timestamps count as sampled already, and all are taken, as with a checkpoint that sets neither
    option.
    """
    total, most, each_second = len(video.frames), settings.get("num_frames"), settings.get("fps")
    if most is None or each_second is None or video.fps is None:
        return range(total)
    duration = total / video.fps
    count = max(min(round(each_second * duration), most), 1)
    first, last = 0, total - 1
    if duration - 2 > most * each_second:
        first, last = int(video.fps), min(int(total - video.fps), total - 1)
    if first >= last:
        first, last = 0, total - 1
    return [*dict.fromkeys(_spread(first, last, count))]


def no_more_of_a_second(video: Frames, settings: Settings) -> Sequence[int]:
    """Molmo 2: `num_frames`, or fewer if they would exceed `max_fps` per second; or `fps` frames per second."""
    total, each_second, most = len(video.frames), settings.get("fps"), settings["max_fps"]
    fps = video.fps or taken_of_a_second(settings)
    if each_second is not None:
        count = int(total / fps * each_second)
    else:
        count = (
            min(settings["num_frames"], int(total / fps * most))
            if fps > most
            else settings["num_frames"]
        )
    return _at_distances(total, max(min(count, total), 1))


def one_of_a_second(video: Frames, settings: Settings) -> Sequence[int]:
    """MiniCPM-V 4.6: the first frame of each second, or `max_num_frames` of a video with more seconds."""
    if video.fps is None:
        return range(len(video.frames))
    fps, duration = video.fps, len(video.frames) / video.fps
    most, total = settings["max_num_frames"], len(video.frames)
    if duration <= most:
        return [int(number * fps) for number in range(math.ceil(duration))]
    tenths = (round(number * 0.1, 1) for number in range(int(duration / 0.1)))
    at = [min(int(tenth * fps), total - 1) for tenth in tenths]
    return [at[one] for one in _spread(0, len(at) - 1, most)] if len(at) > most else at


def taken_of_a_second(settings: Settings) -> float:
    """Return Molmo 2's default number of frames per second, for a video without timestamps."""
    rate: float = settings.get("fps") or settings["max_fps"]
    return rate


def _at_distances(total: int, count: int, start: float = 0) -> list[int]:
    # float32 at the end, as in transformers: an index that is nearly the next frame becomes that frame
    steps = np.arange(start, total, total / count).astype(np.float32)
    return [int(step) for step in steps if step < total]


def _no_times(video: Frames, each_second: float) -> MediaError:
    return MediaError(
        f"Cannot sample {video.name}: its {len(video.frames)} frames have no times, and the checkpoint takes "
        f"{each_second} frames of each second. Expected a video with times. Give an MP4, WebM, GIF or APNG."
    )


def too_few(video: Frames, expected: int) -> MediaError:
    """Return the error for a video with fewer frames than required."""
    return MediaError(
        f"Cannot sample {video.name}: it has {len(video.frames)} frames. Expected at least {expected}, which the "
        "checkpoint takes of it. Give a longer one."
    )
