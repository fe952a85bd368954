# SPDX-License-Identifier: Apache-2.0
"""Phi-4 multimodal: masked tiles with a learned token after each line, and a LoRA adapter for prompts with images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Layout
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Phi4(Images):
    """The whole image and its tiles, each with a mask of patches."""

    mask: str = "image_attention_mask"
    adapter: str = "vision-lora"

    pixels: ClassVar[str] = "image_pixel_values"

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(arrange=_arrange)

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import tile_tracing

        return tile_tracing.tracing(model, self)

    def tiles_of(
        self, vision: "Vision", prepared: "Mapping[str, Array]"
    ) -> "tuple[Sequence[Array], dict[str, Array]]":
        """See `Images`: the program takes the mask."""
        import numpy as np

        pixels, mask = np.asarray(prepared[self.pixels], np.float32), prepared[self.mask]
        real = mask.reshape(-1, *mask.shape[-2:]) > 0
        return [*pixels.reshape(-1, *pixels.shape[-3:])], {self.mask: real.astype(np.int64)}

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: the whole image, and one tile of the same size."""
        import numpy as np

        names = self.pixels, self.mask
        sides, patches = (vision.program.inputs[name].shape[1:] for name in names)
        return {
            self.pixels: random.standard_normal((1, 2, *sides), np.float32),
            "image_sizes": np.array([sides[1:]]),
            self.mask: np.ones((1, 2, *patches), np.int64),
        }


def _arrange(tiles: "Sequence[Array]", prepared: "Mapping[str, Array]", config: Any) -> "Array":
    """Return the features of the tiles and the whole image, with a learned token after each line, and one between."""
    import numpy as np

    side, size = math.isqrt(len(tiles[0])), int(config["vision_config"]["crop_size"])
    tall, wide = (int(one) // size for one in prepared["image_sizes"].reshape(2))
    mask = prepared["image_attention_mask"]
    mask = mask.reshape(-1, *mask.shape[-2:])[1 : 1 + tall * wide, ::2, ::2]
    real = mask.reshape(tall, wide, side, side).transpose(0, 2, 1, 3).reshape(tall * side, -1)
    rows, columns = int(real[:, 0].sum()), int(real[0].sum())
    parts = np.stack([tile[:-1] for tile in tiles[1 : 1 + tall * wide]])
    parts = parts.reshape(tall, wide, side, side + 1, -1)[:, :, :, :-1].transpose(0, 2, 1, 3, 4)
    parts = parts.reshape(tall * side, wide * side, -1)[:rows, :columns]
    ends = np.broadcast_to(tiles[0][side], (rows, 1, parts.shape[2]))
    lines = np.concatenate([parts, ends], axis=1).reshape(-1, parts.shape[2])
    return np.concatenate([lines, tiles[0][-1:], tiles[0][:-1]])
