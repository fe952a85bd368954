# SPDX-License-Identifier: Apache-2.0
"""Numbers as devices hold them: float16 with saturation, and the microscaling formats (OCP MX v1.0).

A block of 32 numbers along one axis shares a scale X, a power of two (E8M0); each number is an element times X.

    mxfp6   element E2M3, or E3M2    largest element 7.5, or 28
    mxint8  element int8 / 64        largest element 127 / 64

X = 2 ** (floor(log2(largest magnitude)) - emax), with emax 2 for E2M3, 4 for E3M2 and 0 for int8, within 2 ** ±127.
Elements are rounded to nearest, ties to even, and saturate; int8 leaves out -128, so that its range is symmetric. The
last block of an axis may be shorter. A block of zeros stays zeros, and a subnormal float32 is a number as any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

BLOCK = 32
FLOAT16_MAX = 65504.0
_LEAST, _MOST = -127, 127  # exponents of E8M0
_AT_ONCE = 1 << 18  # numbers: all that is made of them stays in the cache


@dataclass(frozen=True, kw_only=True)
class Element:
    """What a block has for each of its numbers.

    Args:
        dtype: Type of the stored elements.
        emax: Exponent of the largest power of two among them.
        largest: The largest of them.
        unit: Number that the stored value 1 represents.
    """

    dtype: Any
    emax: int
    largest: float
    unit: float = 1.0


ELEMENTS: Mapping[str, Element] = MappingProxyType(
    {
        "e2m3": Element(dtype=ml_dtypes.float6_e2m3fn, emax=2, largest=7.5),
        "e3m2": Element(dtype=ml_dtypes.float6_e3m2fn, emax=4, largest=28.0),
        "int8": Element(dtype=np.int8, emax=0, largest=127 / 64, unit=1 / 64),
    }
)


def to_float16_and_back(values: Array) -> Array:
    """Return the nearest float16 values as float32; what is beyond them becomes ±65504, and NaN stays NaN."""
    rounded = np.empty(values.shape, np.float32)
    given, results = values.reshape(-1), rounded.reshape(-1)
    for start in range(0, len(given), _AT_ONCE):
        piece = slice(start, start + _AT_ONCE)
        results[piece] = np.clip(given[piece], -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
    return rounded


def quantize(values: Array, element: str) -> tuple[Array, Array]:
    """Quantize along the last axis.

    Args:
        values: (…, K), float32.
        element: One of `ELEMENTS`.

    Returns:
        Elements (…, blocks, 32), the last block filled up with zeros; and scales (…, blocks), as E8M0.

    Raises:
        ValueError: A value is infinite or not a number.
    """
    kind = ELEMENTS[element]
    *lead, columns = values.shape
    blocks = -(-columns // BLOCK)
    if columns % BLOCK:
        padding = [(0, 0)] * len(lead) + [(0, blocks * BLOCK - columns)]
        values = np.pad(values, padding)
    numbers = values.reshape(*lead, blocks, BLOCK)
    largest = np.abs(numbers).max(-1)
    if not np.isfinite(largest).all():
        raise ValueError("A value is infinite or not a number.")
    # frexp is exact where log2 is not: largest = m * 2 ** e with 1/2 <= m < 1.
    exponents = np.frexp(largest)[1] - 1 - kind.emax
    exponents = np.clip(np.where(largest > 0, exponents, _LEAST), _LEAST, _MOST)
    scales = np.ldexp(np.float32(1), exponents)
    scaled = numbers / scales[..., None]  # exact, as all steps by powers of two
    scaled = np.clip(scaled, -kind.largest, kind.largest)
    if kind.unit != 1:
        scaled = np.rint(scaled / np.float32(kind.unit))
    return scaled.astype(kind.dtype), scales.astype(ml_dtypes.float8_e8m0fnu)


def dequantize(elements: Array, scales: Array, columns: int, element: str) -> Array:
    """Return the values of what `quantize` returned.

    Args:
        elements: (…, blocks, 32).
        scales: (…, blocks).
        columns: K.
        element: Argument of `quantize`.

    Returns:
        (…, K), float32.
    """
    values = elements.astype(np.float32) * np.float32(ELEMENTS[element].unit)
    values *= scales.astype(np.float32)[..., None]
    return values.reshape(*values.shape[:-2], -1)[..., :columns]


def round_trip(values: Array, element: str, axis: int = -1, out: Array | None = None) -> Array:
    """Return what is left of values once they are quantized.

    Args:
        values: Floats of any type, at least one axis.
        element: One of `ELEMENTS`.
        axis: Along which blocks lie.
        out: Destination: float32, same shape, perhaps `values` itself.

    Returns:
        Float32, same shape. Beside it, memory for some rows is all that is needed.

    Raises:
        ValueError: A value is infinite or not a number.
    """
    rounded = np.empty(values.shape, np.float32) if out is None else out
    _fill(np.moveaxis(rounded, axis, -1), np.moveaxis(values, axis, -1), element)
    return rounded


def _fill(rounded: Array, values: Array, element: str) -> None:
    """Round some rows at a time."""
    if values.ndim > 2:
        for one, other in zip(rounded, values, strict=True):
            _fill(one, other, element)
        return
    columns = values.shape[-1]
    rows = max(1, _AT_ONCE // max(1, columns))
    for start in range(0, len(values) if values.ndim == 2 else 1, rows):
        part = (slice(start, start + rows),) if values.ndim == 2 else ()
        piece = np.ascontiguousarray(values[(*part, ...)], np.float32)
        rounded[(*part, ...)] = dequantize(*quantize(piece, element), columns, element)
