# SPDX-License-Identifier: Apache-2.0
"""Crops of a picture that overlap, rows of which are made of patches of several: program `vision` of such models.

IN   pixel_values (crops, patches, values) f32          all crops of a picture, in the one size that the tower takes
     <pooled> (image_rows, pool) i64                    the patches of which each row is made, counted over all crops,
                                                        -1 for none; a recipe says how the forward calls them
OUT  as of `qeff_zoo.tasks.vision_tracing`
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.tasks.patch_tracing import rows_of

from . import Tracing

_CROPS, _ROWS, _POOL = 3, 5, 4  # of the example
#: The forward's argument for rows and columns of each picture, by which it would part them: here there is one.
_GRIDS = "image_grids"


class _EveryRow(TorchFunctionMode):
    """Keeps all rows where a forward would choose those that have patches: a processor makes no others."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.shape == values.shape[:1]:
                return values
        return func(*args, **(kwargs or {}))


class Crops(nn.Module):
    """The forward of all crops of a picture, up to its rows.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        pooled: The forward's argument for the patches of each row.
    """

    def __init__(self, model: Any, pooled: str) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features."""
        pixels, patches = given
        told = {self.pooled: patches, _GRIDS: torch.zeros(1, 4, dtype=torch.long)}
        with Concrete(), _EveryRow():
            output = self.model.get_image_features(pixel_values=pixels, **told)
        return (rows_of(output.pooler_output),)


def tracing(model: Any, pooled: str) -> Tracing:
    """Describe how to trace what makes features of crops.

    Args:
        model: From `loader.load_meta`.
        pooled: The forward's argument for the patches of each row.
    """
    vision = model.config.vision_config
    patches = math.prod(side // vision.patch_size for side in vision.image_size)
    values = vision.patch_size**2 * vision.num_channels
    rows, pool = Dim("image_rows", min=2), Dim("pool", min=2)
    given = {
        "pixel_values": (torch.zeros(_CROPS, patches, values), {0: Dim("crops", min=2)}),
        pooled: (torch.zeros(_ROWS, _POOL, dtype=torch.long), {0: rows, 1: pool}),
    }
    return Tracing(
        module=Crops(model, pooled).eval(),
        inputs={"given": [example for example, _ in given.values()]},
        dynamic_shapes={"given": [axes for _, axes in given.values()]},
        input_names=[*given],
        output_names=["image_embeds"],
    )
