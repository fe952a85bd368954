# SPDX-License-Identifier: Apache-2.0
"""Image processor of DeepSeek VL Hybrid; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

from qeff_zoo.media.image_rules import Arrays, in_square, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers


def long_edge_in_two_squares(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DeepSeek-VL 7B: a larger square, `high_res_pixel_values`, and `pixel_values`, which is resized from it."""
    changed = ("size", "resample", "image_mean", "image_std")
    finer = {**settings} | {name: settings[f"high_res_{name}"] for name in changed}
    large = [in_square(image, finer) if settings["do_resize"] else image for image in images]
    small = [in_square(image, settings) if settings["do_resize"] else image for image in large]
    return {
        "pixel_values": stacked([numbers(image, settings) for image in small]),
        "high_res_pixel_values": stacked([numbers(image, finer) for image in large]),
    }
