# SPDX-License-Identifier: Apache-2.0
"""Videos that are read step by step: each step is a picture in the prompt, behind a text that says when it is."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.runtime.media_text import Prepared
from qeff_zoo.runtime.tokenizer import Tokenizer
from qeff_zoo.runtime.vision_encoder import FILM_GRID, FILM_MERGE, FRAMES, GRID, KEPT

#: Of each step, in seconds, as the processor says it.
TIMES = "timestamps"
#: Of the whole video, in seconds, where somebody knows it.
DURATION = "duration"
_ONES = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


#: What processors make of the sound of a video.
_SOUNDS = {"input_features", "feature_attention_mask"}


def of_processor(given: Mapping[str, Any], images: ImageEncoder) -> Prepared:
    """Call what a processor has prepared of a video as the arrays of pictures are called.

    Args:
        given: `pixel_values_videos`, or `pixel_values` where a processor calls frames so; of patches `video_grid_thw`,
            and `second_per_grid_ts` or `video_second_per_grid` (1 where neither is there); of patches that are merged
            otherwise than those of pictures `video_merge_sizes` and `video_compression_mask`; of crops
            `video_token_pooling` and `video_grids`; of slices `target_sizes_videos` and `grids_videos`; and where each
            step's time is written in the prompt, `timestamps`, and perhaps how long the video is, `duration`, in
            seconds.
        images: As the package's manifest declares it.

    Raises:
        GenerationError: It has sound, too, or lacks what is said of patches.
    """
    if sound := given.keys() & _SOUNDS:
        raise GenerationError(
            f"What was prepared of the video has {', '.join(sorted(sound))}, its sound; expected its frames alone. "
            "Process it with use_audio_in_video=False."
        )
    pixels = np.asarray(given[FRAMES if FRAMES in given else "pixel_values"])
    known = {name: np.asarray(given[name]) for name in (TIMES, DURATION) if name in given}
    prepared: Prepared = images.video_arrays(pixels, given, known)
    return prepared


def rows_of(prepared: Prepared, images: ImageEncoder, config: Mapping[str, Any]) -> int:
    """Return how many rows of features a video takes at least.

    Args:
        prepared: Of a video.
        images: As the package's manifest declares it.
        config: Of the model.
    """
    if KEPT in prepared:
        return int(prepared[KEPT].sum())
    if FRAMES in prepared:
        vision, stride = config["vision_config"], int(config.get("spatial_pool_stride", 1))
        side = int(vision["image_size"]) // int(vision["patch_size"]) // stride
        return int(prepared[FRAMES].shape[1]) * side**2
    return images.video_rows(prepared, config)


def check_times(given: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the times of a video's steps, of which there are as many as of steps."""
    steps, found = _count(given), given.get(TIMES)
    times = np.asarray([] if found is None else found, np.float64).reshape(-1)
    if len(times) != steps:
        raise GenerationError(
            f"The video has {steps} steps of time, and {len(times)} times of them ({TIMES!r}); expected one for each, "
            "in seconds, which this model is told. Let the package process the video, or give them beside its arrays."
        )
    return times


def _count(prepared: Mapping[str, Any]) -> int:
    if grid := {GRID, FILM_GRID} & prepared.keys():
        return int(np.asarray(prepared[grid.pop()]).reshape(3)[0])
    return len(prepared["pixel_values"])


def steps_of(prepared: Prepared) -> list[Prepared]:
    """Take a video apart into pictures, which do not see one another."""
    if KEPT in prepared:
        steps, height, width = (int(one) for one in prepared[FILM_GRID].reshape(3))
        parts = zip(*(np.split(prepared[name], steps) for name in (FRAMES, KEPT)), strict=True)
        alike = {FILM_GRID: np.array([[1, height, width]]), FILM_MERGE: prepared[FILM_MERGE]}
        return [{FRAMES: patches, KEPT: kept, **alike} for patches, kept in parts]
    if GRID not in prepared:
        own = "pixel_values", TIMES, DURATION
        alike = {name: one for name, one in prepared.items() if name not in own}
        return [{"pixel_values": one[None], **alike} for one in prepared["pixel_values"]]
    steps, height, width = (int(one) for one in prepared[GRID].reshape(3))
    grid = np.array([[1, height, width]], np.int64)
    patches = np.split(np.asarray(prepared["pixel_values"]), steps)
    return [{"pixel_values": one, GRID: grid} for one in patches]


def required(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a package's tokenizer.

    Raises:
        GenerationError: It has none.
    """
    if tokenizer is None:
        raise GenerationError(
            "The prompt has videos, and this package has no tokenizer; expected one, since the times of a video's "
            "steps are written as text. Build the package of a checkpoint with tokenizer.json."
        )
    return tokenizer


class Stamps:
    """Writes the places of a video's steps into a prompt.

    Args:
        texts: Before and after a step, between steps, and before and after all of them, as a recipe says.
        tokenizer: Of the package.
        film: What stands for a video in a text.
        step: What is written for a step; nothing for the same.
        around: Texts around the number of each video of a prompt; nothing where they have none.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        film: str,
        step: str = "",
        around: Sequence[str] = (),
    ) -> None:
        before, after, self._between, self._first, self._last = (*texts, *[""] * 3)[:5]
        self._step = f"{before}{step or film}{after}"
        self._film, self._tokenizer, self._around = film, tokenizer, around

    def text(self, video: Prepared, number: int, most: int) -> str:
        """Return what is written for a video, the first of which has number 0.

        Args:
            video: As it is prepared.
            number: Of the prompt's videos before it.
            most: Steps of the longest of the prompt's videos, which processors fill others up to and say of each.
        """
        times = video[TIMES]
        seconds = int(video.get(DURATION, times[-1]))
        first = self._first.format(frames=_in_words(most), duration=timedelta(seconds=seconds))
        steps = (
            self._step.format(
                float(one), number=place + 1, second=int(one), clock=f"{int(one // 60):02d}:{int(one % 60):02d}"
            )
            for place, one in enumerate(times)
        )  # fmt: skip
        return str(number).join(self._around) + first + self._between.join(steps) + self._last

    def in_text(self, prompt: str, videos: Sequence[Prepared]) -> str:
        """Write out the videos of a text, of which it has as many places."""
        first, *rest = prompt.split(self._film)
        written = zip(self._texts(videos), rest, strict=True)
        return first + "".join(text + after for text, after in written)

    def in_tokens(self, tokens: Sequence[int], film: int, videos: Sequence[Prepared]) -> list[int]:
        """Write out the videos of a prompt's tokens: between others that stand for no text, as templates write them."""
        left, whole = iter(self._texts(videos)), list[int]()
        for token in tokens:
            if token == film:
                whole += self._tokenizer.encode(next(left), special_tokens=False)
            else:
                whole.append(token)
        return whole

    def _texts(self, videos: Sequence[Prepared]) -> list[str]:
        most = max(len(one[TIMES]) for one in videos)
        return [self.text(one, number, most) for number, one in enumerate(videos)]


def _in_words(number: int) -> str:
    """Write a number below a million as people say it: two thousand, three hundred and sixty-four."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return "-".join(filter(None, (_TENS[number // 10], _ONES[number % 10])))
    hundreds = number < 1000
    unit, name = (100, "hundred") if hundreds else (1000, "thousand")
    whole, rest = f"{_in_words(number // unit)} {name}", number % unit
    joint = " and " if rest < 100 else ", "
    return f"{whole}{joint}{_in_words(rest)}" if rest else whole
