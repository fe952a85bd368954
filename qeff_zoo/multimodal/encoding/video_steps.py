# SPDX-License-Identifier: Apache-2.0
"""Videos whose temporal steps are encoded one by one: each is an image in the prompt, after its timestamp text."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.multimodal.encoding.vision_encoder import FRAMES, GRID, KEPT, VIDEO_GRID, VIDEO_MERGE
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.runtime.program import to_numpy
from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: Timestamp of each step in seconds, among the arrays of a processor.
TIMES = "timestamps"
#: Duration of the video in seconds, if known.
DURATION = "duration"
_ONES = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


#: Arrays of processors for the audio of a video.
_AUDIO = {"input_features", "feature_attention_mask"}


class PreparedVideo(dict[str, Any]):
    """Encoder inputs of a video that a session has prepared, by name."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        self._names = frozenset(prepared)

    @property
    def is_whole(self) -> bool:
        """Whether no array was removed or added since."""
        return self.keys() == self._names


def of_processor(given: Mapping[str, Any], images: ImageEncoder) -> Prepared:
    """Return a processor's arrays of a video under the names of image arrays.

    Args:
        given: `pixel_values_videos`, or `pixel_values` for processors with that name for frames; for patches
            `video_grid_thw`, and `second_per_grid_ts` or `video_second_per_grid` (1 by default); for patches with
            another merge size than images `video_merge_sizes` and `video_compression_mask`; for crops
            `video_token_pooling` and `video_grids`; for slices `target_sizes_videos` and `grids_videos`; and for
            prompts with timestamp texts `timestamps`, and optionally `duration`, in seconds.
        images: Image encoder of the package's manifest.

    Raises:
        GenerationError: If the arrays include audio, or lack those of patches.
    """
    if audio := given.keys() & _AUDIO:
        raise GenerationError(
            f"What was prepared of the video has {', '.join(sorted(audio))}, its audio; expected its frames alone. "
            "Process it with use_audio_in_video=False."
        )
    given = {
        name: to_numpy(array) if hasattr(array, "detach") else array
        for name, array in given.items()
    }
    pixels = np.asarray(given[FRAMES if FRAMES in given else "pixel_values"])
    known = {name: np.asarray(given[name]) for name in (TIMES, DURATION) if name in given}
    prepared: Prepared = images.video_arrays(pixels, given, known)
    return prepared


def rows_of(prepared: Prepared, images: ImageEncoder, config: Mapping[str, Any]) -> int:
    """Return the minimum number of placeholder tokens of a video.

    Args:
        prepared: Arrays of the video.
        images: Image encoder of the package's manifest.
        config: Config of the model.
    """
    if KEPT in prepared:
        return int(prepared[KEPT].sum())
    if FRAMES in prepared:
        vision, stride = config["vision_config"], int(config.get("spatial_pool_stride", 1))
        side = int(vision["image_size"]) // int(vision["patch_size"]) // stride
        return int(prepared[FRAMES].shape[1]) * side**2
    return images.video_rows(prepared, config)


def check_times(given: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the timestamps of a video after a check that there is one per step."""
    steps, timestamps = _count(given), given.get(TIMES)
    times = np.asarray([] if timestamps is None else timestamps, np.float64).reshape(-1)
    if len(times) != steps:
        raise GenerationError(
            f"The video has {steps} steps of time, and {len(times)} times of them ({TIMES!r}); expected one for each, "
            "in seconds, which this model requires. Let the package process the video, or give them beside its arrays."
        )
    return times


def _count(prepared: Mapping[str, Any]) -> int:
    if grid := {GRID, VIDEO_GRID} & prepared.keys():
        return int(np.asarray(prepared[grid.pop()]).reshape(3)[0])
    return len(prepared["pixel_values"])


def steps_of(prepared: Prepared) -> list[Prepared]:
    """Return the temporal steps of a video as images, which do not attend to one another."""
    if KEPT in prepared:
        steps, height, width = (int(one) for one in prepared[VIDEO_GRID].reshape(3))
        parts = zip(*(np.split(prepared[name], steps) for name in (FRAMES, KEPT)), strict=True)
        alike = {VIDEO_GRID: np.array([[1, height, width]]), VIDEO_MERGE: prepared[VIDEO_MERGE]}
        return [{FRAMES: patches, KEPT: kept, **alike} for patches, kept in parts]
    if GRID not in prepared:
        own = "pixel_values", TIMES, DURATION
        alike = {name: array for name, array in prepared.items() if name not in own}
        return [{"pixel_values": one[None], **alike} for one in prepared["pixel_values"]]
    steps, height, width = (int(one) for one in prepared[GRID].reshape(3))
    grid = np.array([[1, height, width]], np.int64)
    patches = np.split(np.asarray(prepared["pixel_values"]), steps)
    return [{"pixel_values": patch, GRID: grid} for patch in patches]


def required(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a package's tokenizer.

    Raises:
        GenerationError: If the package has no tokenizer.
    """
    if tokenizer is None:
        raise GenerationError(
            "The prompt has videos, and this package has no tokenizer; expected one, since the times of a video's "
            "steps are written as text. Build the package of a checkpoint with tokenizer.json."
        )
    return tokenizer


class Stamps:
    """Text of a video's temporal steps in a prompt.

    Args:
        texts: Texts before and after a step, between steps, and before and after all of them, as in a recipe.
        tokenizer: Tokenizer of the package.
        video: Text that marks a video.
        step: Text that marks a step; empty for the same as `video`.
        around: Texts around the number of each video in a prompt; empty without numbers.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        video: str,
        step: str = "",
        around: Sequence[str] = (),
    ) -> None:
        before, after, self._between, self._first, self._last = (*texts, *[""] * 3)[:5]
        self._step = f"{before}{step or video}{after}"
        self._marker, self._tokenizer, self._around = video, tokenizer, around

    def text(self, video: Prepared, number: int, most: int) -> str:
        """Return the text of a video.

        Args:
            video: Arrays of the video.
            number: Number of preceding videos in the prompt.
            most: Number of steps in the prompt's longest video, to which processors pad the others, and which every
                text has.
        """
        times = video[TIMES]
        seconds = int(video.get(DURATION, times[-1]))
        first = self._first.format(frames=_in_words(most), duration=timedelta(seconds=seconds))
        steps = (
            self._step.format(
                float(time), number=place + 1, second=int(time), clock=f"{int(time // 60):02d}:{int(time % 60):02d}"
            )
            for place, time in enumerate(times)
        )  # fmt: skip
        return str(number).join(self._around) + first + self._between.join(steps) + self._last

    def in_text(self, prompt: str, videos: Sequence[Prepared]) -> str:
        """Return a text with its video markers expanded."""
        first, *rest = prompt.split(self._marker)
        written = zip(self._texts(videos), rest, strict=True)
        return first + "".join(text + after for text, after in written)

    def in_tokens(self, tokens: Sequence[int], video: int, videos: Sequence[Prepared]) -> list[int]:
        """Return a prompt's tokens with its video markers expanded; texts between them are tokenized separately."""
        left, whole = iter(self._texts(videos)), list[int]()
        for token in tokens:
            if token == video:
                whole += self._tokenizer.encode(next(left), special_tokens=False)
            else:
                whole.append(token)
        return whole

    def _texts(self, videos: Sequence[Prepared]) -> list[str]:
        most = max(len(video[TIMES]) for video in videos)
        return [self.text(video, number, most) for number, video in enumerate(videos)]


def _in_words(number: int) -> str:
    """Return a number below a million in words: two thousand, three hundred and sixty-four."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return "-".join(filter(None, (_TENS[number // 10], _ONES[number % 10])))
    hundreds = number < 1000
    unit, name = (100, "hundred") if hundreds else (1000, "thousand")
    whole, rest = f"{_in_words(number // unit)} {name}", number % unit
    joint = " and " if rest < 100 else ", "
    return f"{whole}{joint}{_in_words(rest)}" if rest else whole
