# SPDX-License-Identifier: Apache-2.0
"""Patches of images of any size, whose positions are inputs of the program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class PatchGrid(Images):
    """Patches of images of any size and aspect ratio.

    Args:
        taps: Interpolation of learned positions: "bilinear" or "bicubic" around the middles of patches, "nearest",
            or "antialiased", in which a patch may weigh every position; else bilinear with corners aligned.
        merge: Patches on a side of the square that becomes an image token, if the forward takes it for each image; 0
            for the config's value.
    """

    taps: str = ""
    merge: int = 0

    #: Whether the processor orders patches in row-major order, and not by merged square.
    lines: ClassVar[bool] = False
    #: Whether patches are (channels, rows, columns), and not one list of values.
    planes: ClassVar[bool] = False
    #: Whether positions of patches include the frame.
    frames: ClassVar[bool] = False
    #: Array of the processor with the columns and rows of patches, -1 for padding.
    positions: ClassVar[str] = ""
    #: Whether the program takes `position_ids`; else positions are in the other inputs.
    placed: ClassVar[bool] = True

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """See `Images`."""
        from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry, merge_of

        merge = self.merge or merge_of({**config, **config["vision_config"]})
        return PatchGeometry.read(config, self, merge)

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import patch_tracing

        return patch_tracing.tracing(model, self)

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """Return the module to trace.

        Args:
            model: The model that `loader.load_meta` returns.
            geometry: Geometry of patches.
            names: Names of the inputs.
        """
        from qeff_zoo.multimodal.tracing.patch_tracing import Patches

        return Patches(model, names[1:], geometry, self.merge)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: all patches in one call."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import GRID, MERGE, check_merge
        from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

        geometry = vision.geometry
        check_merge(prepared.get(MERGE), geometry)
        frames, height, width = (int(size) for size in prepared[GRID].reshape(3))
        pixels = np.asarray(prepared[self.pixels], np.float32)
        inputs = {
            self.pixels: geometry.ordered(pixels, (frames, height, width)),
            GRID: prepared[GRID],
            **geometry.describe((frames, height, width)),
        }
        grid = frames, height // geometry.merge, width // geometry.merge
        times = self.times(frames, prepared, vision.config)
        span = 0 if times is None else self.span(grid, times)
        return Encoded(
            digest=digest, features=vision.run(inputs), grid=grid, times=times, span=span
        )

    def times(
        self, steps: int, prepared: "Mapping[str, Array]", config: Mapping[str, Any]
    ) -> "Array | None":
        """Return the rotary positions of a video's temporal steps; None if they are consecutive, as in an image."""
        return None

    def span(self, grid: tuple[int, int, int], times: "Array") -> int:
        """Return the number of rotary positions that a video takes; 0 if its rows and columns set it."""
        return 0

    def rows_of(self, vision: "Vision", inputs: "Mapping[str, Array]") -> int | None:
        """See `Images`: an image token for each merged square."""
        return (
            len(inputs[self.pixels]) // vision.geometry.merge**2 if self.pixels in inputs else None
        )

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import (
            GRID,
            OMNI_SECONDS,
            STEP_SECONDS,
            VIDEO_GRID,
        )

        if VIDEO_GRID not in given:
            return super().video_arrays(pixels, given, known)
        seconds = given.get(STEP_SECONDS, given.get(OMNI_SECONDS, [1.0]))
        grid = {GRID: given[VIDEO_GRID], STEP_SECONDS: np.asarray(seconds, np.float32)}
        return {"pixel_values": pixels, **grid, **known}

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """See `Images`."""
        return int(len(prepared["pixel_values"]) / self.geometry(config).merge ** 2)

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.vision_encoder import GRID, MERGE

        height, width = (side * vision.geometry.merge for side in size)
        values = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        shape = height * width, *values
        return {
            GRID: np.array([[1, height, width]]),
            **({MERGE: np.array([self.merge])} if self.merge else {}),
            self.pixels: random.standard_normal(shape, np.float32),
        }
