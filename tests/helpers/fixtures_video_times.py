# SPDX-License-Identifier: Apache-2.0
"""What several tests of video times and others use."""

from pathlib import Path
from typing import Any

from PIL import Image


def clip(folder: Path, frames: list[Any], milliseconds: int) -> Path:
    every = [Image.fromarray(frame) for frame in frames]
    every[0].save(
        folder / "clip.png", save_all=True, append_images=every[1:], duration=milliseconds
    )
    return folder / "clip.png"
