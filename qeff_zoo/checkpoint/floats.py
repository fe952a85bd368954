# SPDX-License-Identifier: Apache-2.0
"""Floats of checkpoints, by their safetensors dtypes, as float32."""

import numpy as np

from qeff_zoo.checkpoint.types import Array

#: Safetensors dtypes that `to_float32` takes.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
#: Which are whole numbers below 2**24, such as token ids, is taken for granted.
INTEGERS = frozenset({"I64"})


def to_float32(raw: Array, dtype: str, out: "Array | None" = None) -> Array:
    """Convert to float32; exact but for float64.

    Args:
        raw: Values; BF16 as uint16.
        dtype: Safetensors dtype of the values, one of `FLOATS`, or of `INTEGERS`.
        out: Destination: float32, same shape, contiguous.
    """
    if out is None:
        out = np.empty(raw.shape, np.float32)
    if dtype == "BF16":  # the upper half of a float32
        np.left_shift(raw, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
    elif dtype in FLOATS | INTEGERS:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, as in torch
            np.copyto(out, raw, casting="same_kind")
    else:
        raise ValueError(f"Cannot convert {dtype} to float32, expected one of {sorted(FLOATS)}.")
    return out
