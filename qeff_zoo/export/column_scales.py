# SPDX-License-Identifier: Apache-2.0
"""Scales of columns that move into the source of a layer's input: the float model computes the same as before."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qeff_zoo.export.linears import Group, set_weights, weights_of

_TOLERANCE = 1e-5  # of a layer's output, relative to its largest value


def divide(
    layer: nn.Module,
    group: Group,
    source: nn.Module,
    offset: float,
    spread: Tensor,
    scales: Tensor,
    dtype: torch.dtype,
) -> tuple[Callable[[], None], dict[str, Tensor]]:
    """Divide the source of a group's input by scales, and multiply the group's columns.

    Args:
        layer: Loaded layer.
        group: Readers of the source's output.
        source: Norm or linear layer.
        offset: Number that the source adds to its weight.
        spread: Index of the source's row for each column of the group.
        scales: Scale of each row of the source.
        dtype: Type that the source is stored in.

    Returns:
        Function that restores the layer, and parameters of the source.
    """
    weight, bias = source.weight, getattr(source, "bias", None)
    assert isinstance(weight, Tensor)
    was = weights_of(layer, group.linears)
    values: dict[str, Tensor] = {}
    if bias is not None and dtype != torch.float32:
        scales = torch.exp2(scales.log2().round())  # which divides a bias of 16 bits exactly
    if weight.ndim == 1:
        divided = ((weight + offset) / scales - offset).to(dtype).float()
        usable = (divided + offset).abs() > 1e-6 * (weight + offset).abs().max()
        values["weight"] = torch.where(usable, divided, weight)
        scales = torch.where(usable, (weight + offset) / (divided + offset), torch.ones(()))
    else:  # rounded later, from float32
        values["weight"] = weight / scales[:, None]
    if bias is not None:
        values["bias"] = (bias / scales).to(dtype).float()
    old = {name: source._parameters[name] for name in values}

    def undo() -> None:
        source._parameters.update(old)
        set_weights(layer, was)

    for name, value in values.items():
        source._parameters[name] = nn.Parameter(value, requires_grad=False)
    set_weights(layer, {name: entry * scales[spread] for name, entry in was.items()})
    return undo, values


def is_same(before: Tensor, after: Tensor) -> bool:
    """Whether two outputs of a layer agree within float32."""
    return float((before - after).abs().max()) <= _TOLERANCE * float(before.abs().max())
