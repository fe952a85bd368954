# SPDX-License-Identifier: Apache-2.0
"""What was computed for every token of a call, in whatever shape, brought into one: (batch, width, slots, n)."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.program import Array


def by_token(values: Array, batch: int, width: int) -> Array | None:
    """Bring what was computed for every token of a call into one shape.

    Args:
        values: (batch * width, …, n), or (batch, …, n) with an axis of the tokens.
        batch: Rows of the call.
        width: Tokens of each.

    Returns:
        (batch, width, slots, n), or None where no axis is that of the tokens.
    """
    axis = token_axis(values.shape, batch, width)
    if axis is None:
        return None
    moved = np.moveaxis(values, axis, 1) if axis else values
    return moved.reshape(batch, width, -1, values.shape[-1])


def as_it_was(values: Array, shape: Sequence[int], batch: int, width: int) -> Array:
    """Undo `by_token`.

    Args:
        values: (batch, width, slots, n).
        shape: Original shape of the values; the last axis may have had another size.
        batch: Rows of the call.
        width: Tokens of each.
    """
    axis, last = token_axis(shape, batch, width), values.shape[-1]
    if not axis:
        return values.reshape(*shape[:-1], last)
    others = [size for place, size in enumerate(shape[1:-1], 1) if place != axis]
    return np.moveaxis(values.reshape(batch, width, *others, last), 1, axis)


def token_axis(shape: Sequence[int], batch: int, width: int) -> int | None:
    """Return which axis is that of the tokens: 0 where rows and tokens are one, None where there is none."""
    if not shape[:-1]:
        return None
    if shape[0] == batch * width:
        return 0
    axes = [axis for axis in range(1, len(shape) - 1) if shape[axis] == width]
    return axes[-1] if axes and shape[0] == batch else None
