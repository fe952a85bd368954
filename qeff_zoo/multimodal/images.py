# SPDX-License-Identifier: Apache-2.0
"""Base class of the image encoders that recipes declare: values, and hooks that a model family overrides.

Importing this module, or a family, imports neither numpy nor torch; a hook imports what it needs.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.recipe_media import ImageEncoder

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.recipe_media import AudioEncoder
    from qeff_zoo.runtime.caches.image_prompt_templates import Layout
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Images(ImageEncoder):
    """Images of one size, or tiles of one size, which the vision encoder encodes one by one."""

    # --- the package ---------------------------------------------------------------------------------------------

    @property
    def one_piece(self) -> bool:
        """See `ImageEncoder`."""
        return True

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry | None":
        """See `ImageEncoder`."""
        return None

    def frame_geometry(self, config: Mapping[str, Any]) -> "PatchGeometry | None":
        """See `ImageEncoder`."""
        return None

    @property
    def prompt_layout(self) -> "Layout":
        """See `ImageEncoder`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout()

    # --- tracing -------------------------------------------------------------------------------------------------

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `ImageEncoder`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        return vision_tracing.tracing(model, self, side=side)

    def trace_language(
        self, model: Any, audio: "AudioEncoder | None" = None, **variant: Any
    ) -> "Tracing":
        """See `ImageEncoder`."""
        from qeff_zoo.multimodal.tracing import language_tracing

        return language_tracing.tracing(model, images=self, audio=audio, **variant)

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """See `ImageEncoder`."""
        import torch

        arguments = {self.pixels: pixels[None] if self.nested else pixels}
        if self.mask:
            arguments[self.mask] = torch.ones(1, 1, dtype=torch.bool)
        return arguments

    def traced_with(self, model: Any) -> AbstractContextManager[Any]:
        """See `ImageEncoder`."""
        return nullcontext()

    # --- the runtime ---------------------------------------------------------------------------------------------

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `ImageEncoder`."""
        import numpy as np

        tiles, masks = self.tiles_of(vision, prepared)
        # Other inputs of the program are the same tiles in another size.
        names = vision.program.inputs.keys() - {self.pixels} - masks.keys()
        others = {name: np.asarray(prepared[name], np.float32) for name in names} | masks
        outputs = [
            vision.run(
                {self.pixels: tile[None], **{name: other[[at]] for name, other in others.items()}}
            )
            for at, tile in enumerate(tiles)
        ]
        return vision.arranged(
            digest, [self.chosen(output, prepared) for output in outputs], prepared
        )

    def tiles_of(
        self, vision: "Vision", prepared: "Mapping[str, Array]"
    ) -> "tuple[Sequence[Array], dict[str, Array]]":
        """See `ImageEncoder`."""
        import numpy as np

        pixels = np.asarray(prepared[self.pixels], np.float32)
        tiles = [*pixels.reshape(-1, *pixels.shape[-3:])]
        mask = prepared.get(self.mask)
        if mask is None:
            height, width = pixels.shape[-2:]
            return [self.cropped(tile, height, width, vision.config) for tile in tiles], {}
        if mask.ndim < 3:  # of tiles
            there = mask.reshape(-1)
            return [tile for tile, kept in zip(tiles, there, strict=True) if kept], {}
        real = mask.reshape(-1, *mask.shape[-2:]) > 0
        sizes = zip(tiles, real.any(2).sum(1), real.any(1).sum(1), strict=True)
        return [
            self.cropped(tile, height, width, vision.config) for tile, height, width in sizes
        ], {}

    def cropped(self, tile: "Array", height: int, width: int, config: Mapping[str, Any]) -> "Array":
        """See `ImageEncoder`."""
        return tile[:, :height, :width]

    def chosen(
        self, features: "dict[str, Array]", prepared: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `ImageEncoder`."""
        return features

    def rows_of(self, vision: "Vision", inputs: "Mapping[str, Array]") -> int | None:
        """See `ImageEncoder`."""
        return None

    @property
    def arrays(self) -> tuple[str, ...]:
        """See `ImageEncoder`."""
        return tuple(filter(None, (self.mask, self.tiles)))

    def is_uncut(self, images: int) -> bool:
        """See `ImageEncoder`."""
        return False

    # --- videos --------------------------------------------------------------------------------------------------

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `ImageEncoder`."""
        import numpy as np

        from qeff_zoo.multimodal.encoding.video_steps import TIMES
        from qeff_zoo.runtime.caches.image_prompt_templates import OF_VIDEO

        frames = pixels.reshape(-1, *pixels.shape[-3:])
        if not self.stamp:
            return {"pixel_values": frames, OF_VIDEO: np.array(1)}
        untimed = {} if "{clock}" in self.stamp[0] else {TIMES: np.zeros(len(frames))}
        return {"pixel_values": frames, **untimed, **known}

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """See `ImageEncoder`."""
        count = len(prepared["pixel_values"])
        if scale := config.get("scale_factor"):
            vision = config["vision_config"]
            side = int(vision["image_size"]) // int(vision["patch_size"]) // int(scale)
            return count * side**2
        return count * int(config.get("image_seq_length", 1))

    # --- validation ----------------------------------------------------------------------------------------------

    @property
    def drawn_as_pixels(self) -> bool:
        """See `ImageEncoder`."""
        return False

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `ImageEncoder`."""
        import numpy as np

        tensor = vision.program.inputs[self.pixels]
        shape = [length for length in tensor.shape if isinstance(length, int)]
        shape = [1, *shape] if self.nested else shape
        inputs: dict[str, Array] = {}
        if self.mask:
            inputs[self.mask] = np.ones(shape[:-3], bool)
        inputs[self.pixels] = random.standard_normal(shape, np.float32)
        return inputs

    def joined(self, arrays: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """See `ImageEncoder`."""
        return arrays
