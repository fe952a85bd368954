# SPDX-License-Identifier: Apache-2.0
"""Images that the language model reads by cross-attention: their keys and values are states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.recipe_media import AudioEncoder
    from qeff_zoo.runtime.decoding.multimodal_spans import CrossAttentionImage as View
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class CrossAttentionImage(Images):
    """Tiles of an image, encoded together, to which the cross-attention layers of the config attend.

    Args:
        layers: Field of the text config that lists those layers.
        mask: Name of the mask of tiles in the result of the processor.
    """

    layers: str = "cross_attention_layers"
    mask: str = "aspect_ratio_mask"

    by_cross_attention: ClassVar[bool] = True

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import cross_attention_image_tracing

        return cross_attention_image_tracing.encoder_tracing(model, self)

    def trace_language(
        self, model: Any, audio: "AudioEncoder | None" = None, **variant: Any
    ) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import cross_attention_image_tracing

        return cross_attention_image_tracing.tracing(model, self, **variant)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "View":
        """See `Images`: all tiles together, which attend to one another."""
        import numpy as np

        from qeff_zoo.runtime.decoding.multimodal_spans import CrossAttentionImage as View

        kinds = {self.pixels: np.float32}
        inputs = {
            name: np.ascontiguousarray(prepared[name], kinds.get(name, np.int64))
            for name in vision.program.inputs
        }
        outputs = vision.run(inputs)
        tiles = prepared[self.mask].reshape(-1) > 0
        return View(
            digest=digest, features={name: rows[0] for name, rows in outputs.items()}, tiles=tiles
        )

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: all tiles, with the first aspect ratio."""
        import numpy as np

        shapes = {name: value.shape for name, value in vision.program.inputs.items()}
        return {
            name: random.standard_normal(shape, np.float32)
            if name == self.pixels
            else np.ones(shape, bool if name == self.mask else np.int64)
            for name, shape in shapes.items()
        }
