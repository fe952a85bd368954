# SPDX-License-Identifier: Apache-2.0
"""Images, and video frames with other operators, in a separate program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.runtime.program import Array

#: Number of frames in a random video for validation.
_FRAMES = 2


@dataclass(frozen=True, kw_only=True)
class FrameProgram(Images):
    """Images as in `Images`; frames of a video one by one, in a separate program."""

    has_frame_program: ClassVar[bool] = True

    def trace_frame(self, model: Any) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        return vision_tracing.tracing(model, self, module=vision_tracing.Frame)

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        from qeff_zoo.multimodal.encoding.vision_encoder import FRAMES

        return {FRAMES: pixels.reshape(1, -1, *pixels.shape[-3:])}

    def sample_frame(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`. All videos have equal lengths: transformers would pad the shorter ones of a batch."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import FRAMES

        shape = vision.program.inputs[self.pixels].shape[1:]
        return {FRAMES: random.standard_normal((1, _FRAMES, *shape), np.float32)}
