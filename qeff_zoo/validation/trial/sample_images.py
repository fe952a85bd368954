# SPDX-License-Identifier: Apache-2.0
"""Fixed sample images of validation: smooth colors, edges, and noise; and videos of them."""

from typing import Any

import numpy as np

#: Wide, high, square, small, and of odd sides: (width, height) in pixels.
SHAPES = ((320, 200), (151, 233), (256, 256), (40, 31), (333, 500), (97, 97))


#: How many numbers say which image.
NUMBERS = 3
_APART = 100  # between the seeds of two videos: no two share a frame


def draw(seed: int, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image, (height, width, 3) of uint8, always the same one for the same arguments.

    Args:
        seed: Which image.
        width: Width in pixels.
        height: Height in pixels.
    """
    numbers = np.random.default_rng(seed)
    down, right = np.mgrid[0:height, 0:width] / max(height, width)
    waves = numbers.uniform(2, 14, (3, 2))
    phases = numbers.uniform(0, 6, 3)
    image = np.stack(
        [
            128 + 90 * np.sin(along * right + across * down + phase)
            for (along, across), phase in zip(waves, phases, strict=True)
        ],
        axis=2,
    )
    for _ in range(6):  # rectangles of one color
        top, left = int(numbers.integers(0, height)), int(numbers.integers(0, width))
        tall, wide = (
            int(numbers.integers(1, 1 + height // 2)),
            int(numbers.integers(1, 1 + width // 2)),
        )
        image[top : top + tall, left : left + wide] = numbers.integers(0, 256, 3)
    return np.clip(image + numbers.normal(0, 12, image.shape), 0, 255).astype(np.uint8)


def draw_video(
    seed: int, width: int, height: int, frames: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a sample video, (frames, height, width, 3) of uint8, of more frames than a model reads.

    Args:
        seed: Which video.
        width: Width in pixels.
        height: Height in pixels.
        frames: Number of frames that the model reads.
    """
    count = frames + 1 + seed % frames
    # Some frames are repeated, as in films; all differ from their neighbors.
    seeds = (_APART * seed + number % _APART for number in range(count))
    return np.stack([draw(one, width, height) for one in seeds])


def choose(count: int) -> list[list[int]]:
    """Return the arguments of `draw` for so many images, of all shapes in turn."""
    return [[number, *SHAPES[number % len(SHAPES)]] for number in range(count)]
