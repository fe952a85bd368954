# SPDX-License-Identifier: Apache-2.0
"""Options of one image or video for its processing, such as a maximum of pixels, beside the checkpoint's settings.

Only processors for images of any size, or of several tiles, have such options: others make what their program takes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qeff_zoo.errors import MediaError
from qeff_zoo.media import image_rules as rules
from qeff_zoo.media import patch_rules
from qeff_zoo.media.families import (
    cohere2_vision,
    cosmos3_edge,
    gemma4,
    got_ocr2,
    kimi_k25,
    lfm2,
    llama4,
    minicpm,
    minimax_m3,
    ovis2,
    paddleocr_vl,
    pixtral,
    radio,
    video_llama_3,
)
from qeff_zoo.media.image_processor import PROCESSORS, ImageProcessor
from qeff_zoo.media.images import ImageSource
from qeff_zoo.media.video_processor import VideoProcessor

#: Pixels of an image with `detail` "low": those of a square of 512, as in OpenAI's API.
_LOW_SIDE = 512
#: Names of options that are settings of processors by pixels: of `size`, in which they are.
_PIXELS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
_BY_PIXELS = (*_PIXELS, "size")
_TILES = ("crop_to_patches", "min_patches", "max_patches")
#: Options of a rule, beside the settings of a checkpoint, and its settings for `detail` "low".
_OPTIONS: Mapping[rules.Rule, tuple[Collection[str], Mapping[str, Any]]] = {
    **dict.fromkeys(
        (
            patch_rules.grid_of_patches, video_llama_3.grid_with_merge_sizes, paddleocr_vl.lines_of_patches,
            patch_rules.grid_of_frames, cosmos3_edge.grid_of_pixels, minimax_m3.grid_of_resized_patches,
        ),
        (_BY_PIXELS, {"max_pixels": _LOW_SIDE**2}),
    ),
    **dict.fromkeys(
        (gemma4.placed_patches, gemma4.placed_merged_patches),
        (("max_soft_tokens",), {"max_soft_tokens": 70}),
    ),
    **dict.fromkeys(
        (got_ocr2.tiles_of_one_canvas, ovis2.whole_and_covering_tiles, cohere2_vision.tiles_of_fitting_grids),
        (_TILES, {"crop_to_patches": False}),
    ),
    pixtral.whole_patches: (("size",), {"size": {"longest_edge": _LOW_SIDE}}),
    rules.tiles_and_whole: (("do_image_splitting", "size"), {"do_image_splitting": False}),
    minicpm.whole_and_slices: (("slice_mode", "max_slice_nums"), {"slice_mode": False}),
    minicpm.whole_and_resized_slices: (("slice_mode", "max_slice_nums"), {"slice_mode": False}),
    llama4.tiles_of_canvases_and_whole: (("max_patches",), {"max_patches": 1}),
    lfm2.tiles_of_patches: (
        ("do_image_splitting", "min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens"),
        {"do_image_splitting": False},
    ),
    kimi_k25.padded_lines_of_patches: (("max_patches",), {"max_patches": 1024}),
    radio.lines_of_float_patches: (
        ("min_num_patches", "max_num_patches"), {"min_num_patches": 1, "max_num_patches": 1024},
    ),
}  # fmt: skip
#: Multiple of the checkpoint's own numbers of tiles and tokens that a request may ask for.
_MORE = 4
#: Options of a video, by which its frames are sampled.
OF_VIDEOS = ("do_sample_frames", "fps", "num_frames")


@dataclass(frozen=True)
class ImageInput:
    """Image with options for its processing.

    Attributes:
        source: The image, in any form that `media.images.read_image` accepts.
        options: Options by name: settings of the checkpoint's image processor that may differ between images, such as
            `max_pixels`; and `detail`, "low" for fewer image tokens.
    """

    source: ImageSource
    options: Mapping[str, Any]


@dataclass(frozen=True)
class VideoInput:
    """Video with options for its processing.

    Attributes:
        source: The video, in any form that `media.videos.read_video` accepts.
        options: `fps` or `num_frames`, by which frames are sampled; or `do_sample_frames`.
    """

    source: Any
    options: Mapping[str, Any]


def source_of(given: Any) -> Any:
    """Return an image or video without its options."""
    return given.source if isinstance(given, ImageInput | VideoInput) else given


def media_options(given: Any) -> Mapping[str, Any]:
    """Return the options of an image or video; empty for one without any."""
    return given.options if isinstance(given, ImageInput | VideoInput) else {}


def with_options(processor: ImageProcessor, options: Mapping[str, Any]) -> ImageProcessor:
    """Return a processor with other settings for an image.

    Args:
        processor: Processor of the checkpoint.
        options: Options by name, see `ImageInput`.

    Raises:
        MediaError: If the processor has no such option, or a value is impossible.
    """
    rule, _ = PROCESSORS[processor.name]
    names, low = _OPTIONS.get(rule, ((), {}))
    detail, given = options.get("detail"), {**options}
    given.pop("detail", None)
    if unknown := given.keys() - set(names):
        raise MediaError(
            f"Images of this model have no option {min(unknown)!r}; expected {', '.join(names) or 'none'}. Leave it "
            "out."
        )
    changed = {**(low if detail == "low" else {}), **given}
    settings = {**processor.settings}
    size = {**settings["size"], **_size_of(changed.pop("size", {}), settings["size"])}
    for name, place in _PIXELS.items():
        if name in changed:
            size[place] = _positive(name, changed.pop(name))
    if "shortest_edge" in size and "longest_edge" in size:
        if {*_PIXELS} <= given.keys() and size["shortest_edge"] > size["longest_edge"]:
            raise MediaError(
                f"Option 'min_pixels' is {size['shortest_edge']:,} and 'max_pixels' {size['longest_edge']:,}; expected "
                "no more than that. Change one."
            )
        if "min_pixels" in given:
            size["longest_edge"] = max(size.values())
        size["shortest_edge"] = min(size["shortest_edge"], size["longest_edge"])
    for name, value in changed.items():
        if isinstance(settings[name], bool) and not isinstance(value, bool):
            raise MediaError(f"Option {name!r} is {value!r}; expected true or false. Change it.")
        if not isinstance(settings[name], bool) and _positive(name, value) > _MORE * settings[name]:
            raise MediaError(
                f"Option {name!r} is {value:,}; expected at most {_MORE * settings[name]:,}, which is {_MORE} times "
                "the checkpoint's own. Ask for less."
            )
        settings[name] = value
    return replace(processor, settings={**settings, "size": size})


def with_sampling(processor: VideoProcessor, options: Mapping[str, Any]) -> VideoProcessor:
    """Return a processor that samples the frames of a video otherwise.

    Args:
        processor: Processor of the checkpoint.
        options: Options by name, see `VideoInput`.

    Raises:
        MediaError: If there is no such option, or a value is impossible.
    """
    if unknown := options.keys() - set(OF_VIDEOS):
        raise MediaError(
            f"Videos have no option {min(unknown)!r}; expected {', '.join(OF_VIDEOS)}. Leave it out."
        )
    fps, count = options.get("fps"), options.get("num_frames")
    if fps is not None and count is not None and processor.kind.counts:
        raise MediaError(
            f"Options 'fps' and 'num_frames' are {fps!r} and {count!r}; expected one of the two. Leave one out."
        )
    changed: dict[str, Any] = {}
    if count is not None:
        changed = {"num_frames": _positive("num_frames", count), "fps": None}
    if fps is not None:
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
            raise MediaError(
                f"Option 'fps' is {fps!r}; expected a number above 0 and up to 1,000. Change it."
            )
        changed |= {"fps": fps, **({"num_frames": None} if processor.kind.counts else {})}
    sampled = options.get("do_sample_frames", bool(changed) or None)
    if sampled is not None:
        changed["do_sample_frames"] = bool(sampled)
    fixed = {name: value for name, value in changed.items() if name not in processor.kind.fixed}
    return replace(processor, settings={**processor.settings, **fixed})


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        raise MediaError(
            f"Option {name!r} is {value!r}; expected a whole number above 0. Change it."
        )
    return value


def _size_of(given: Any, known: Mapping[str, int]) -> dict[str, int]:
    """Return a given `size`, in the form of the checkpoint's."""
    if not isinstance(given, Mapping) or given.keys() - known.keys():
        raise MediaError(
            f"Option 'size' is {given!r}; expected {' and '.join(known)} by name, as the checkpoint has it. Change it."
        )
    return {name: _positive(f"size.{name}", array) for name, array in given.items()}
