# SPDX-License-Identifier: Apache-2.0
"""Scales of columns that make a matrix easier to round, moved into what makes its input (AWQ, arXiv:2306.00978).

A column is multiplied by its scale, and the norm's weight, or the row of the matrix before, that makes its input is
divided by it: the float model stays what it is. Whether a model allows that is tried, not looked up: a layer's answer
must not change. Where the divided number is stored in 16 bits it is rounded first, and the scale is what that leaves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qeff_zoo.export.column_scales import divide, is_same
from qeff_zoo.export.linears import Group, linear_of, weights_of
from qeff_zoo.quantizer.grids import Scheme
from qeff_zoo.quantizer.rounding import damped, error_of, nearest

_POWERS = tuple(step / 10 for step in range(1, 10))
_ROWS = 512  # of a group that scales are searched with
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Folded:
    """Where scales went.

    Args:
        name: Name of the norm, or of the linear layer, within the layer.
        values: Current parameters by name.
    """

    name: str
    values: dict[str, Tensor]


def fold(
    layer: nn.Module,
    group: Group,
    earlier: Sequence[str],
    hessian: Tensor,
    scheme: Scheme,
    stored: Callable[[str], torch.dtype | None],
    head_dim: int,
    run: Callable[[], Tensor],
) -> Folded | None:
    """Scale the columns of a group where that makes rounding to the nearest better, and its source allows it.

    Args:
        layer: Loaded; changed in place.
        group: All of it will be rounded.
        earlier: Linear layers called before, which will be rounded after this.
        hessian: Second moments of the group's input.
        scheme: Storage scheme of the matrix.
        stored: Returns the type that a norm's weight, or a linear layer's bias, is stored in; None where it cannot be.
        head_dim: Head size, for keys and values that several heads share.
        run: Runs the layer on one text.
    """
    weights = torch.cat(list(weights_of(layer, group.linears).values()))
    weights = weights[:: -(-len(weights) // _ROWS)]
    hessian = damped(hessian)
    before = run()
    for name, offset, spread in _sources(layer, group, earlier, head_dim):
        source, dtype = layer.get_submodule(name), stored(name)
        if dtype is None:
            continue
        # Any scales show whether the source is one; so the search, which takes longer, comes after.
        trial = torch.exp2(torch.arange(_length(source)) % 3 - 1.0)
        undo, _ = divide(layer, group, source, offset, spread, trial, dtype)
        same = is_same(before, run())
        undo()
        if not same:
            continue
        scales = _search(weights, hessian, spread, scheme)
        if scales is None:
            return None
        undo, values = divide(layer, group, source, offset, spread, scales, dtype)
        if not is_same(before, run()):
            undo()
            return None
        return Folded(name, values)
    return None


def _length(source: nn.Module) -> int:
    weight = source.weight
    assert isinstance(weight, Tensor)
    return len(weight)


def _sources(
    layer: nn.Module, group: Group, earlier: Sequence[str], head_dim: int
) -> list[tuple[str, float, Tensor]]:
    """Return what may make a group's input: a module, what its weight lacks, and the row that makes each column."""
    columns = linear_of(layer, group.linears[0]).in_features
    if group.norm is not None:
        return [(group.norm, offset, torch.arange(columns)) for offset in (0.0, 1.0)]
    sources = []
    for name in reversed(earlier):
        rows = _length(layer.get_submodule(name))
        if rows == columns:
            sources.append((name, 0.0, torch.arange(columns)))
        elif columns % rows == 0 and rows % head_dim == 0:
            heads = torch.arange(rows).view(-1, head_dim)
            shared = heads.repeat_interleave(columns // rows, 0)
            sources.append((name, 0.0, shared.flatten()))
    return sources


def _search(weights: Tensor, hessian: Tensor, spread: Tensor, scheme: Scheme) -> Tensor | None:
    """Return the scales with the least error of those that are powers of how large inputs are; None for none."""
    size = torch.zeros(int(spread.max()) + 1).index_add_(0, spread, hessian.diagonal()).sqrt()

    def error(scales: Tensor) -> float:
        each = scales[spread]
        inner = hessian / each[:, None] / each
        scaled = weights * each
        return error_of(
            scaled, nearest(scaled, inner.diagonal(), scheme, torch.float32).values, inner
        )

    plain = error(torch.ones_like(size))
    tried = []
    for power in _POWERS:
        scales = size.clamp_min(1e-6 * float(size.max())) ** power
        scales = scales / (scales.max() * scales.min()).sqrt()
        tried.append((error(scales), power, scales))
    least, _, best = min(tried, key=lambda one: one[:2])
    return best if least < (1 - _LEAST_GAIN) * plain else None
