# SPDX-License-Identifier: Apache-2.0
"""How values lie in the buffers of a card: types by their names in QAicApi, and bfloat16, which numpy has not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import PackageError
from qeff_zoo.runtime.program import Array

#: Types of buffers, by their names in QAicApi.
_DTYPES: Mapping[str, type[np.generic]] = {
    "FLOAT_TYPE": np.float32,
    "FLOAT_16_TYPE": np.float16,
    "BFLOAT16_TYPE": np.uint16,  # numpy has none: the upper half of a float32
    "INT8_Q_TYPE": np.int8,
    "UINT8_Q_TYPE": np.uint8,
    "INT16_Q_TYPE": np.int16,
    "INT32_Q_TYPE": np.int32,
    "INT32_I_TYPE": np.int32,
    "INT64_I_TYPE": np.int64,
    "INT8_TYPE": np.int8,
}


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """How the values of an input or an output lie in a buffer.

    Args:
        dtype: Type of the values.
        is_bfloat16: Whether these are the upper halves of float32.
    """

    dtype: np.dtype[Any]
    is_bfloat16: bool

    @property
    def tensor_dtype(self) -> np.dtype[Any]:
        """Type of the values outside."""
        return np.dtype(np.float32) if self.is_bfloat16 else self.dtype

    def write(self, array: Array) -> Array:
        """Turn an input into what a card reads."""
        if self.is_bfloat16:  # the nearest, of two the even
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
            array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.ascontiguousarray(array, self.dtype)

    def read(self, array: Array) -> Array:
        """Turn what a card wrote into an output."""
        return (array.astype(np.uint32) << 16).view(np.float32) if self.is_bfloat16 else array


def buffer_of(api: Any, name: str, kind: int) -> Buffer:
    """Describe a buffer.

    Args:
        api: The SDK's module `QAicApi_pb2`.
        name: Name of the input or output.
        kind: Number of its type.

    Raises:
        PackageError: The type is unknown.
    """
    types = {getattr(api, known): known for known in _DTYPES if hasattr(api, known)}
    if kind not in types:
        raise PackageError(
            f"The QPC gives {name!r} the type {kind!r}; expected one of {', '.join(_DTYPES)}. Compile it with another "
            "precision of inputs and outputs."
        )
    known = types[kind]
    return Buffer(dtype=np.dtype(_DTYPES[known]), is_bfloat16=known == "BFLOAT16_TYPE")
