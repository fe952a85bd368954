# SPDX-License-Identifier: Apache-2.0
"""Frames of videos, as the model of a checkpoint takes them."""

from typing import TYPE_CHECKING

import numpy as np

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.recipe import Recipe

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def frame_size(checkpoint: "Checkpoint", recipe: Recipe) -> tuple[int, int]:
    """Return the height and width of every frame in the output of a checkpoint's processor.

    Args:
        checkpoint: Opened checkpoint.
        recipe: Recipe of its `model_type`, whose `image_processor` is the processor's class if the files name none.

    Raises:
        CheckpointError: There is no processor, or the size depends on the video.
        UnsupportedModelError: The processor has an unsupported operation.
    """
    folder = checkpoint.companions["config.json"].parent
    processor = load_video_processor(folder, recipe.image_processor)
    sizes = {
        processor(np.zeros((1, *size, 3), np.uint8))["pixel_values_videos"].shape[-2:]
        for size in ((300, 200), (200, 300))
    }
    (size, *others) = sizes
    if others:
        raise CheckpointError(
            f"The processor of {checkpoint.name!r} makes frames of the sizes {sorted(sizes)} of two videos. Expected "
            "one size for all. Set `do_center_crop` to true and `crop_size` in its JSON file."
        )
    return int(size[0]), int(size[1])
