# SPDX-License-Identifier: Apache-2.0
"""Second moments of the inputs of matrices."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def moments(linear: nn.Linear) -> Iterator[Tensor]:
    """Yield the second moments (columns, columns) of a linear layer's input, which grow with every run of it.

    Args:
        linear: Linear module of a loaded layer.
    """
    total = torch.zeros(linear.in_features, linear.in_features)

    def add(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        recorded = arguments[0].reshape(-1, linear.in_features)
        total.addmm_(recorded.T, recorded)

    hook = linear.register_forward_pre_hook(add)
    try:
        yield total
    finally:
        hook.remove()
