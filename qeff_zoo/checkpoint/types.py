# SPDX-License-Identifier: Apache-2.0
"""Types of weights: an array, an expression over checkpoint tensors, a reader of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
#: How a tensor is made of checkpoint tensors; see `qeff_zoo.checkpoint.expressions`.
Expression: TypeAlias = str | list[Any]
#: Reads rows `start:stop` of a checkpoint tensor; None and None for all of it.
Read: TypeAlias = Callable[[str, int | None, int | None], Array]
