# SPDX-License-Identifier: Apache-2.0
"""Grids of coordinates in maps (Deformable DETR), for maps of any size."""

from typing import Any

import torch
from torch import Tensor

from .modules import give, rebound

#: Methods with the sizes of maps, by the suffix of the class.
_METHODS = {
    "DetrModel": ("forward", "gen_encoder_output_proposals"),
    "DetrEncoder": ("get_reference_points",),
}


def apply(model: Any, *, prefix: str) -> int:
    """Let grids and tensors of sizes be computed from symbols.

    Args:
        model: Hugging Face model, changed in place.
        prefix: Beginning of the names of its classes.

    Returns:
        Number of changed modules.
    """
    count = 0
    for module in model.modules():
        name = type(module).__name__.removeprefix(prefix)
        for method in _METHODS.get(name, ()):
            changed = rebound(getattr(type(module), method), torch=_SYMBOLIC)
            if isinstance(vars(type(module))[method], staticmethod):
                setattr(module, method, changed)
            else:
                give(module, changed, method)
        count += name in _METHODS
    return count


class _Torch:
    """PyTorch, but for functions that would fix the sizes of the example."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def as_tensor(sizes: Any, **options: Any) -> Tensor:
        """Return the tensor of pairs of sizes."""
        rows = [torch.stack([torch.full((), one, **options) for one in pair]) for pair in sizes]
        return torch.stack(rows)

    @staticmethod
    def linspace(start: float, end: float, steps: int, **options: Any) -> Tensor:
        """Return numbers at distances of 1, as all of the replaced calls are."""
        return torch.arange(steps, **options) + start


_SYMBOLIC = _Torch()
