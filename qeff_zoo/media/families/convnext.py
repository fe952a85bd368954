# SPDX-License-Identifier: Apache-2.0
"""Image processors of ConvNeXt and ResNet; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    crop_to_size,
    numbers,
    resize,
    shortest_edge,
)


def cropped_below_384(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """ConvNeXt and ResNet: a center crop below 384 pixels; from 384 on the whole image, resized to a square."""
    edge, arrays = settings["size"]["shortest_edge"], []
    for image in images:
        if settings["do_resize"] and edge < 384:
            larger = shortest_edge(image, int(edge / settings["crop_pct"]))
            crop = {"do_center_crop": True, "crop_size": {"height": edge, "width": edge}}
            image = crop_to_size(resize(image, *larger, settings["resample"]), crop)
        elif settings["do_resize"]:
            image = resize(image, edge, edge, settings["resample"])
        arrays.append(numbers(crop_to_size(image, settings), settings))
    return {"pixel_values": stacked(arrays)}
