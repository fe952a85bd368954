# SPDX-License-Identifier: Apache-2.0
"""A tile of an image, for a model whose decoder puts features among its embeddings itself: program `vision`.

IN   pixel_values (1, channels, height, width) f32      a tile, or the whole image in its size; named by the recipe
     <mask> (1, rows, columns) i64                      1 for a patch without padding; named after the argument
OUT  image_embeds (rows, hidden)                        a row for each square of patches, padding included; each line
                                                        ends with a learned row, and so does the tile

The traced forward is transformers' own, up to where it would put features in place of tokens. It takes the whole image
and its tiles, so that the tile is passed as both; one of the two identical results is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing.forward_patches import swapped
from qeff_zoo.multimodal.tracing.patch_tracing import rows_of
from qeff_zoo.multimodal.tracing.vision_tracing import ImageForward
from qeff_zoo.recipe_media import ImageEncoder

#: Method that computes features of tiles, before they are ordered.
_TOWER = "get_img_features"


class PutRecorder(TorchFunctionMode):
    """Records the features that a forward puts in place of tokens."""

    features: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.index_put:
            self.features = kwargs["values"]
            return args[0]
        return func(*args, **(kwargs or {}))


class _Sides:
    """Height and width of an image as numbers, where a forward expects a tensor with those of several images."""

    def __init__(self, sides: Sequence[int]) -> None:
        self.sides = sides

    def view(self, *_: int) -> list[Sequence[int]]:
        return [self.sides]


class Tile(ImageForward):
    """The forward of a tile, up to the merge.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: Image input of the recipe.
    """

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of (pixels, mask)."""
        pixels, mask = given
        maker = next(module for module in self.model.modules() if hasattr(module, _TOWER))
        plain = getattr(maker, _TOWER)

        def make(*_: Any, **__: Any) -> Tensor:
            features: Tensor = plain(pixels, attention_mask=mask > 0)
            return features.expand(2, -1, -1)

        put, width = PutRecorder(), self.model.config.hidden_size
        with swapped((maker, _TOWER, make)), Concrete(), put:
            arguments = {
                "input_ids": self.tokens,
                "inputs_embeds": torch.zeros(*self.tokens.shape, width),
                self.images.pixels: pixels[None],
                self.images.mask: torch.ones(1, 2, *mask.shape[1:]),
                "image_sizes": _Sides(pixels.shape[2:]),
            }
            maker(**arguments)
        rows = rows_of(put.features)
        return (rows[: (rows.shape[0] + 1) // 2],)


def tracing(model: Any, images: ImageEncoder) -> Tracing:
    """Describe how to trace the encoder of tiles.

    Args:
        model: Model from `loader.load_meta`.
        images: Image input of the recipe.
    """
    vision = model.config.vision_config
    size, side = vision.image_size, vision.image_size // vision.patch_size
    given = [
        torch.zeros(1, vision.num_channels, size, size),
        torch.ones(1, side, side, dtype=torch.long),
    ]
    module: nn.Module = Tile(model, images).eval()
    return Tracing(
        module=module,
        inputs={"given": given},
        dynamic_shapes={"given": [{} for _ in given]},
        input_names=[images.pixels, images.mask],
        output_names=["image_embeds"],
    )
