# SPDX-License-Identifier: Apache-2.0
"""MiniCPM-V: the whole image, then its slices; their patches are concatenated in one line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array

#: Array of the processor with rows and columns of each tile's patches.
_SIZES = "target_sizes"


@dataclass(frozen=True, kw_only=True)
class MiniCpm(PatchGrid):
    """Tiles of any size, one by one; squares of patches are merged within the vision encoder, too."""

    lines: ClassVar[bool] = True
    planes: ClassVar[bool] = True
    taps: str = "nearest"

    placed: ClassVar[bool] = False
    numbered: ClassVar[tuple[str, ...]] = ("image_id_start_token", "image_id_end_token")

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """See `PatchGrid`."""
        return _geometry(config, self)

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=_grid, write=_write)

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """See `PatchGrid`."""
        from qeff_zoo.multimodal.tracing.packed_patch_tracing import Packed

        return Packed(model, geometry.merge)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: tile by tile, of patches (1, channels, rows, columns of all)."""
        from dataclasses import replace

        import numpy as np

        from qeff_zoo.runtime.caches.image_prompt_templates import OF_VIDEO

        pixels, features, begun = np.asarray(prepared[self.pixels], np.float32), [], 0
        side = pixels.shape[2]
        every = pixels[0].reshape(len(pixels[0]), side, -1, side).transpose(2, 0, 1, 3)
        for height, width in prepared[_SIZES].reshape(-1, 2).tolist():
            grid = 1, height, width
            patches = vision.geometry.ordered(every[begun : begun + height * width], grid)
            features.append(vision.run({self.pixels: patches, **vision.geometry.describe(grid)}))
            begun += height * width
        numbered = OF_VIDEO not in prepared  # frames have no numbers
        return replace(vision.joined(digest, features, prepared), numbered=numbered)

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`: patches of all frames are concatenated; all frames of a video have the same slices."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.video_steps import TIMES
        from qeff_zoo.runtime.caches.image_prompt_templates import OF_VIDEO

        if "grids_videos" not in given:
            raise GenerationError(
                f"What was prepared of the video has {', '.join(sorted(given))}; expected `grids_videos`, too, which "
                "say where a frame ends. Give all that the checkpoint's video processor returns, as its whole one "
                "does not."
            )
        every = np.reshape(given[f"{_SIZES}_videos"], (-1, 2))
        grids = np.reshape(given["grids_videos"], (-1, 2))
        parted = np.split(pixels, len(grids), axis=-1)
        return {
            "pixel_values": np.concatenate(parted), _SIZES: every[: len(every) // len(grids)],
            "grids": grids[:1], OF_VIDEO: np.array(1), TIMES: np.zeros(len(grids)), **known,
        }  # fmt: skip

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """See `Images`."""
        patches = len(prepared["pixel_values"]) * int(prepared[_SIZES].prod(1).sum())
        return int(patches / self.geometry(config).merge ** 2)

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: one tile."""
        import numpy as np

        height, width = (length * vision.geometry.merge for length in size)
        _, channels, side, _ = vision.program.inputs[self.pixels].shape
        pixels = random.standard_normal((1, channels, side, height * width * side), np.float32)
        return {_SIZES: np.array([[height, width]]), self.pixels: pixels}

    def joined(self, arrays: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """See `Images`: patches of all images are concatenated."""
        import torch

        return {**arrays, self.pixels: [torch.cat(arrays[self.pixels], -1)]}


def _geometry(config: Mapping[str, Any], images: PatchGrid) -> "PatchGeometry":
    """Return the geometry of patches, of which the encoder may merge squares after one of its layers."""
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry, merge_of

    vision = config["vision_config"]
    never = config.get("downsample_mode") == "4x"
    inner = 1 if never else int(vision.get("window_kernel_size", (2, 2))[0])
    outer = merge_of({**config, **vision}) ** int(config.get("merger_times", 1))
    return PatchGeometry.read(config, images, inner * outer, inner)


def _grid(_: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    import numpy as np

    whole = prepared[_SIZES].reshape(-1, 2)[0].prod()
    tall, wide = (int(one) for one in np.reshape(prepared.get("grids", (0, 0)), -1))
    return int(whole) // _geometry(config, MiniCpm()).merge ** 2, tall, wide


def _write(grid: "Grid", rows: int) -> "Written":
    first, tall, wide = grid
    tokens: Written = ["image_start_token", first, "image_end_token"]
    for row in range(tall):
        tokens += ["\n"] * (row > 0)
        each = (rows - first) // (tall * wide)
        tokens += ["slice_start_token", each, "slice_end_token"] * wide
    return tokens
