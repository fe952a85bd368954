# SPDX-License-Identifier: Apache-2.0
"""Overlapping crops of an image, whose feature rows combine patches of several crops: program `vision`.

IN   pixel_values (crops, patches, values) f32          all crops of an image, in the one size of the encoder
     [<of_patches> (crops, patches) f32]                a number for each patch, such as its share without padding
     <pooled> (image_rows, pool) i64                    patches of each row, counted over all crops, -1 for none;
                                                        named by the recipe after the forward's argument
OUT  outputs of `qeff_zoo.multimodal.tracing.vision_tracing`
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing.patch_tracing import rows_of

_CROPS, _ROWS, _POOL = 3, 5, 4  # of the example
#: Argument of the forward for rows and columns of each image, by which it would split them: here there is one.
_GRIDS = "image_grids"


class _EveryRow(TorchFunctionMode):
    """Keeps all rows if a forward would select those with patches: a processor makes no others."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.shape == values.shape[:1]:
                return values
        return func(*args, **(kwargs or {}))


class Crops(nn.Module):
    """The forward of all crops of an image, up to its feature rows.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        names: Arguments of the forward for the inputs.
    """

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows."""
        arguments = dict(zip(self.names, given, strict=True))
        grids = torch.zeros(1, 4, dtype=torch.long)
        with Concrete(), _EveryRow():
            output = self.model.get_image_features(**arguments, **{_GRIDS: grids})
        return (rows_of(output.pooler_output),)


def tracing(model: Any, pooled: str, of_patches: Sequence[str] = ()) -> Tracing:
    """Describe how to trace the encoder of crops.

    Args:
        model: Model from `loader.load_meta`.
        pooled: Argument of the forward for the patches of each row.
        of_patches: Arguments of the forward with a number for each patch.
    """
    vision = model.config.vision_config
    patches = math.prod(side // vision.patch_size for side in vision.image_size)
    values = vision.patch_size**2 * vision.num_channels
    rows, pool = Dim("image_rows", min=2), Dim("pool", min=2)
    crops = {0: Dim("crops", min=2)}
    given = {
        "pixel_values": (torch.zeros(_CROPS, patches, values), crops),
        **{name: (torch.zeros(_CROPS, patches), crops) for name in of_patches},
        pooled: (torch.zeros(_ROWS, _POOL, dtype=torch.long), {0: rows, 1: pool}),
    }
    return Tracing(
        module=Crops(model, [*given]).eval(),
        inputs={"given": [example for example, _ in given.values()]},
        dynamic_shapes={"given": [axes for _, axes in given.values()]},
        input_names=[*given],
        output_names=["image_embeds"],
    )
