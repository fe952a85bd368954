# SPDX-License-Identifier: Apache-2.0
"""A tile of a picture, of a model whose decoder puts features among its embeddings itself: program `vision`.

IN   pixel_values (1, channels, height, width) f32      a tile, or the whole picture in its size; named as a recipe says
     <mask> (1, rows, columns) i64                      1 for a patch that is no padding; named after the argument
OUT  image_embeds (rows, hidden)                        a row for each square of patches, those that are padding, too;
                                                        each line of them ends with a learned row, and so does the tile

The forward that is traced is transformers' own, up to where it would put features in place of tokens. It wants the
whole picture and its tiles, so that it is shown the tile as both: of what is the same then, one is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.tasks.forward_patches import swapped
from qeff_zoo.tasks.patch_tracing import rows_of
from qeff_zoo.tasks.vision_tracing import Picture

from . import Tracing

#: What makes features of tiles, before they are put in order.
_TOWER = "get_img_features"


class PutRecorder(TorchFunctionMode):
    """Notes the features that a forward puts in place of tokens."""

    features: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.index_put:
            self.features = kwargs["values"]
            return args[0]
        return func(*args, **(kwargs or {}))


class _Sides:
    """Height and width of a picture, as numbers where a forward expects a tensor of those of several."""

    def __init__(self, sides: Sequence[int]) -> None:
        self.sides = sides

    def view(self, *_: int) -> list[Sequence[int]]:
        return [self.sides]


class Tile(Picture):
    """The forward up to the merge, of a tile.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: As a recipe says of them.
    """

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of (pixels, mask)."""
        pixels, mask = given
        maker = next(one for one in self.model.modules() if hasattr(one, _TOWER))
        plain = getattr(maker, _TOWER)

        def make(*_: Any, **__: Any) -> Tensor:
            features: Tensor = plain(pixels, attention_mask=mask > 0)
            return features.expand(2, -1, -1)

        put, width = PutRecorder(), self.model.config.hidden_size
        with swapped((maker, _TOWER, make)), Concrete(), put:
            told = {
                "input_ids": self.tokens,
                "inputs_embeds": torch.zeros(*self.tokens.shape, width),
                self.images.pixels: pixels[None],
                self.images.mask: torch.ones(1, 2, *mask.shape[1:]),
                "image_sizes": _Sides(pixels.shape[2:]),
            }
            maker(**told)
        rows = rows_of(put.features)
        return (rows[: (rows.shape[0] + 1) // 2],)


def tracing(model: Any, images: ImageEncoder) -> Tracing:
    """Describe how to trace what reads a tile.

    Args:
        model: From `loader.load_meta`.
        images: As a recipe says of them.
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
