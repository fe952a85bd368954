# SPDX-License-Identifier: Apache-2.0
"""Qwen 2.5 VL: rotary positions of a video's temporal steps are proportional to time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class QwenVideo(PatchGrid):
    """Patches of images, and of videos whose steps have positions in time.

    Args:
        pace: Default number of rotary positions per second, which `position_id_per_seconds` of the config, or
            `tokens_per_second` of the vision config, overrides.
    """

    axes: int = 3
    video: str = "video_token_id"
    pace: int = 25

    #: Whether the positions of text after a video start after its last step, and not after its rows and columns alone.
    lasting: ClassVar[bool] = False

    def times(
        self, steps: int, prepared: "Mapping[str, Array]", config: Mapping[str, Any]
    ) -> "Array | None":
        """See `PatchGrid`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import STEP_SECONDS

        if STEP_SECONDS not in prepared:
            return None
        seconds = np.float32(prepared[STEP_SECONDS].reshape(()))
        order = np.arange(steps, dtype=np.float32)
        # float32, one product after the other, and truncated, as in the model's forward.
        if each_second := config.get("position_id_per_seconds"):
            times = order * seconds * np.float32(each_second)
        else:
            each_second = config["vision_config"].get("tokens_per_second", self.pace)
            times = order * (np.float32(each_second) * seconds)
        whole: Array = times.astype(np.int64)
        self.check_times(times, float(seconds), float(each_second))
        same = not self.lasting and (whole == np.arange(steps)).all()
        return None if same else whole

    def check_times(self, times: "Array", seconds: float, each_second: float) -> None:
        """Raise `MediaError` if programs do not support the positions.

        Args:
            times: Positions of the steps.
            seconds: Duration of a step.
            each_second: Number of positions per second.
        """

    def span(self, grid: tuple[int, int, int], times: "Array") -> int:
        """See `PatchGrid`."""
        return max(*grid[1:], int(times[-1]) + 1) if self.lasting else 0
