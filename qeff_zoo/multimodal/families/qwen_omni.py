# SPDX-License-Identifier: Apache-2.0
"""Qwen Omni: a start token before each image, and text positions after the last temporal step of a video."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.families.qwen_video import QwenVideo

if TYPE_CHECKING:
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class QwenOmni(QwenVideo):
    """Patches of images, and of videos whose steps have positions in time.

    Args:
        fractions: Whether the model has fractional positions of steps, which programs do not support: rejected.
    """

    fractions: bool = False

    begun: ClassVar[str] = "vision_start_token_id"
    lasting: ClassVar[bool] = True

    def check_times(self, times: "Array", seconds: float, each_second: float) -> None:
        """See `QwenVideo`."""
        if self.fractions and (times != times.round()).any():
            raise MediaError(
                f"Cannot read a video whose steps take {seconds:g} s: with {each_second:g} rotary positions of each "
                f"second they lie at {times[:4].tolist()}. Expected whole ones. Process it with another `fps`."
            )
