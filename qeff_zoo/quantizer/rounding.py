# SPDX-License-Identifier: Apache-2.0
"""Rounding of a matrix that minimizes the error of its products with the sampled inputs, not of its values.

The error of a matrix is `sum((weights - values) @ hessian * (weights - values))`, with `hessian` the inputs' second
moments (columns, columns): the squared difference of its outputs.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qeff_zoo.quantizer.grids import Rounded, Scheme, find_grids, stored_scales, to_grid

_DAMPING = 0.01  # of the mean of the diagonal
_BLOCK = 128  # columns whose updates are put off
_SWEEPS = 4
_ROWS = 4096  # of a matrix at a time


def error_of(weights: Tensor, values: Tensor, hessian: Tensor) -> float:
    """Return the squared difference of a matrix's outputs.

    Args:
        weights: (rows, columns) float32.
        values: Values in place of them.
        hessian: (columns, columns).
    """
    difference = weights - values
    return float(((difference @ hessian) * difference).sum(dtype=torch.float64))


def nearest(weights: Tensor, importance: Tensor, scheme: Scheme, dtype: torch.dtype) -> Rounded:
    """Round to the nearest of the grids that suit the inputs best.

    Args:
        weights: (rows, columns) float32.
        importance: (columns,) of each column's error.
        scheme: Storage scheme of the matrix.
        dtype: Stored type of scales.
    """
    scales, zeros = find_grids(weights, importance, scheme, dtype)
    spread, offset = (one.repeat_interleave(scheme.group, 1) for one in (scales, zeros))
    return Rounded(scheme, to_grid(weights, spread, offset, scheme.bits), scales, zeros)


def gptq(weights: Tensor, hessian: Tensor, scheme: Scheme, dtype: torch.dtype) -> Rounded:
    """Round so that each column makes up for the errors of those before it; then sweep as long as that helps.

    Args:
        weights: (rows, columns) float32.
        hessian: (columns, columns).
        scheme: Storage scheme of the matrix.
        dtype: Stored type of scales.
    """
    hessian = damped(hessian)
    order = hessian.diagonal().argsort(descending=True, stable=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian[order][:, order]))
    upper = torch.linalg.cholesky(inverse, upper=True)
    pieces = []
    for piece in weights.split(_ROWS):
        plain = nearest(piece, hessian.diagonal(), scheme, dtype)
        rounded = _compensated(piece, order, upper, plain)
        # Where there is hardly anything to make up for, it may do harm.
        errors = [error_of(piece, one.values, hessian) for one in (plain, rounded)]
        start = plain if errors[0] < errors[1] else rounded
        pieces.append(_descend(piece, hessian, start, dtype))
    parts = zip(*((one.integers, one.scales, one.zeros) for one in pieces), strict=True)
    return Rounded(scheme, *map(torch.cat, parts))


def compensating(weights: Tensor, hessian: Tensor, crossed: Tensor) -> Tensor:
    """Return weights whose products with the inputs as they are now are nearest to those of the float model.

    Args:
        weights: (rows, columns) float32.
        hessian: (columns, columns), second moments of the inputs that the layers before, rounded, make.
        crossed: (columns, columns), of the float model's inputs with those.
    """
    moved: Tensor = torch.linalg.solve(damped(hessian), crossed - hessian, left=False)
    return weights + weights @ moved


def damped(hessian: Tensor) -> Tensor:
    """Return invertible second moments: unsampled inputs get a small weight."""
    mean = hessian.diagonal().mean()
    extra = _DAMPING * mean if mean > 0 else torch.ones(())
    inverted: Tensor = hessian + torch.eye(len(hessian)) * extra
    return inverted


def _compensated(weights: Tensor, order: Tensor, upper: Tensor, start: Rounded) -> Rounded:
    """Round column by column, the most important first, on fixed grids (GPTQ, https://arxiv.org/abs/2210.17323)."""
    left = weights[:, order].contiguous()
    scales, zeros = (start.spread(one)[:, order] for one in (start.scales, start.zeros))
    integers = torch.empty_like(left)
    for first in range(0, left.shape[1], _BLOCK):
        last = min(first + _BLOCK, left.shape[1])
        errors = torch.empty(len(left), last - first)
        for column in range(first, last):
            scale, zero = scales[:, column], zeros[:, column]
            integers[:, column] = to_grid(left[:, column], scale, zero, start.scheme.bits)
            value = (integers[:, column] - zero) * scale
            error = (left[:, column] - value) / upper[column, column]
            left[:, column:last] -= error[:, None] * upper[column, column:last]
            errors[:, column - first] = error
        left[:, last:] -= errors @ upper[first:last, last:]
    return replace(start, integers=integers[:, order.argsort()].contiguous())


def _descend(weights: Tensor, hessian: Tensor, start: Rounded, dtype: torch.dtype) -> Rounded:
    """Give each scale, then each integer, in turn its best value for those of all others: no step adds to the error."""
    scheme, scales = start.scheme, start.scales.clone()
    integers = start.integers.clone()
    half = 1 << (scheme.bits - 1)
    diagonal = hessian.diagonal()
    pull = (weights - start.values) @ hessian  # half of minus the error's gradient
    for _ in range(_SWEEPS):
        changed = False
        for group, first in enumerate(range(0, weights.shape[1], scheme.group)):
            columns = slice(first, first + scheme.group)
            within = hessian[columns, columns]
            mine = integers[:, columns] - start.zeros[:, group, None]
            here = pull[:, columns].clone()
            slope = (here * mine).sum(1)
            curve = ((mine @ within) * mine).sum(1)
            step = torch.where(curve > 0, slope / curve, torch.zeros(()))
            scale = stored_scales(scales[:, group] + step, dtype)
            step = scale - scales[:, group]
            step = torch.where(2 * step * slope > step.square() * curve, step, torch.zeros(()))
            scale = scales[:, group] + step
            moved = mine * step[:, None]
            here -= moved @ within
            for column in range(mine.shape[1]):
                was = integers[:, first + column]
                wanted = was + here[:, column] / (diagonal[first + column] * scale)
                now = wanted.round_().clamp_(-half, half - 1)
                move = (now - was) * scale
                here -= move[:, None] * within[column]
                moved[:, column] += move
                integers[:, first + column] = now
            scales[:, group] = scale
            pull -= moved @ hessian[columns]
            changed = changed or bool(moved.any())
        if not changed:
            break
    return replace(start, integers=integers, scales=scales)
