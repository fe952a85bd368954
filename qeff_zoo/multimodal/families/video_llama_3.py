# SPDX-License-Identifier: Apache-2.0
"""VideoLLaMA 3: patches of images, and of frames with another merge size, some of which the processor drops."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.runtime.program import Array

#: Patches on a side of the square of a frame that becomes an image token.
_MERGE = 2


@dataclass(frozen=True, kw_only=True)
class VideoLlama3(PatchGrid):
    """Patches of images, with a separate program for patches of frames."""

    merge: int = 1
    video: str = "video_token_id"
    video_processor: str = "VideoLlama3VideoProcessor"
    stamp: tuple[str, ...] = ("Time {:.1f}s:", "", ",", "", "")

    has_frame_program: ClassVar[bool] = True

    def frame_geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """See `Images`."""
        from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry

        return PatchGeometry.read(config, self, _MERGE)

    def trace_frame(self, model: Any) -> "Tracing":
        """See `Images`."""
        from dataclasses import replace

        return replace(self, merge=_MERGE).trace(model)

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import (
            FRAMES,
            KEPT,
            VIDEO_GRID,
            VIDEO_MERGE,
        )

        names = VIDEO_GRID, VIDEO_MERGE, KEPT
        if lacking := [name for name in names if name not in given]:
            raise GenerationError(
                f"What was prepared of the video has no {', '.join(lacking)}; expected that, too. Give all that the "
                "checkpoint's processor returns."
            )
        return {FRAMES: pixels, **{name: np.asarray(given[name]) for name in names}, **known}

    def sample_frame(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import (
            FRAMES,
            KEPT,
            VIDEO_GRID,
            VIDEO_MERGE,
        )

        rows, columns = size
        shape = vision.program.inputs[self.pixels].shape[1:]
        patches = rows * columns * _MERGE**2
        return {
            FRAMES: random.standard_normal((patches, *shape), np.float32),
            KEPT: np.arange(rows * columns) > 0,
            VIDEO_GRID: np.array([[1, rows * _MERGE, columns * _MERGE]]),
            VIDEO_MERGE: np.array([_MERGE]),
        }
