# SPDX-License-Identifier: Apache-2.0
"""Inverse rational-quadratic splines of flows (VITS), without indices that depend on values."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class, rebound


def apply(model: Any) -> int:
    """Let the flows of a stochastic duration predictor compute every spline in place of selected ones.

    Args:
        model: Hugging Face model, changed in place.

    Returns:
        Number of changed flows.
    """
    flows = of_class(model, "VitsConvFlow")
    for module in flows:
        spline = {"_unconstrained_rational_quadratic_spline": _inverse}
        give(module, rebound(type(module).forward, **spline))
    return len(flows)


def _inverse(
    inputs: Tensor,
    unnormalized_widths: Tensor,
    unnormalized_heights: Tensor,
    unnormalized_derivatives: Tensor,
    reverse: bool,
    tail_bound: float = 5.0,
    least_size: float = 1e-3,
    least_derivative: float = 1e-3,
) -> tuple[Tensor, None]:
    """Return the arguments at which splines have given values; outside of the bounds they are the identity.

    Args:
        inputs: Values, (batch, channels, seq).
        unnormalized_widths: (batch, channels, seq, bins).
        unnormalized_heights: Heights, in the same shape.
        unnormalized_derivatives: Derivatives at inner knots, one fewer.
        reverse: True; speech needs the inverse alone.
        tail_bound: Bound of arguments and of values.
        least_size: Minimum width and height of a bin, of 1 in all.
        least_derivative: Minimum derivative at a knot.
    """
    assert reverse
    left, widths = _knots(unnormalized_widths, least_size, tail_bound)
    lower, heights = _knots(unnormalized_heights, least_size, tail_bound)
    ends = math.log(math.exp(1 - least_derivative) - 1)  # where the derivative is 1
    padded = nn.functional.pad(unnormalized_derivatives, (1, 1), value=ends)
    derivatives = least_derivative + nn.functional.softplus(padded)
    inside = inputs.clamp(-tail_bound, tail_bound)
    above = (inside[..., None] >= lower).to(inputs.dtype)  # bins that begin below a value
    chosen = above - nn.functional.pad(above[..., 1:], (0, 1))

    def of_bin(values: Tensor) -> Tensor:
        return (values * chosen).sum(-1)

    width, height, slope = of_bin(widths), of_bin(heights), of_bin(heights / widths)
    first, second = of_bin(derivatives[..., :-1]), of_bin(derivatives[..., 1:])
    offset = inside - of_bin(lower)
    bend = offset * (first + second - 2 * slope)
    a = height * (slope - first) + bend
    b = height * first - bend
    c = -slope * offset
    root = 2 * c / (-b - torch.sqrt((b.square() - 4 * a * c).clamp(min=0)))
    arguments = root * width + of_bin(left)
    return torch.where(inside == inputs, arguments, inputs), None


def _knots(unnormalized: Tensor, least: float, bound: float) -> tuple[Tensor, Tensor]:
    """Return the beginnings of bins and their sizes, (..., bins) each."""
    sizes = torch.softmax(unnormalized, dim=-1)
    sizes = least + (1 - least * sizes.shape[-1]) * sizes
    ends = 2 * bound * torch.cumsum(sizes, dim=-1)[..., :-1] - bound
    begun = nn.functional.pad(ends, (1, 0), value=-bound)
    return begun, nn.functional.pad(ends, (0, 1), value=bound) - begun
