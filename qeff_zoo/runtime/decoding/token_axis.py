# SPDX-License-Identifier: Apache-2.0
"""Results for every token of a call, in any shape, brought into one: (batch, width, slots, n)."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.program import Array


def by_token(values: Array, batch: int, width: int) -> Array | None:
    """Return the results for every token of a call in one shape.

    Args:
        values: Array (batch * width, …, n), or (batch, …, n) with a token axis.
        batch: Rows of the call.
        width: Tokens of each row.

    Returns:
        An array (batch, width, slots, n), or None without a token axis.
    """
    axis = token_axis(values.shape, batch, width)
    if axis is None:
        return None
    moved = np.moveaxis(values, axis, 1) if axis else values
    return moved.reshape(batch, width, -1, values.shape[-1])


def as_it_was(values: Array, shape: Sequence[int], batch: int, width: int) -> Array:
    """Undo `by_token`.

    Args:
        values: Array (batch, width, slots, n).
        shape: Original shape of the values; the last axis may have had another size.
        batch: Rows of the call.
        width: Tokens of each row.
    """
    axis, last = token_axis(shape, batch, width), values.shape[-1]
    if not axis:
        return values.reshape(*shape[:-1], last)
    others = [size for place, size in enumerate(shape[1:-1], 1) if place != axis]
    return np.moveaxis(values.reshape(batch, width, *others, last), 1, axis)


def token_axis(shape: Sequence[int], batch: int, width: int) -> int | None:
    """Return the token axis: 0 if rows and tokens share an axis, None without one."""
    if not shape[:-1]:
        return None
    if shape[0] == batch * width:
        return 0
    axes = [axis for axis in range(1, len(shape) - 1) if shape[axis] == width]
    return axes[-1] if axes and shape[0] == batch else None
