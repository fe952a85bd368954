# SPDX-License-Identifier: Apache-2.0
"""What several tests of weights and others use."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.safetensors_index import TensorInfo

_NUMPY = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F64": np.float64,
    "I64": np.int64,
}


class Source:
    """Tensors in memory; remembers which rows were read and what was released."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = {
            name: (value if isinstance(value, tuple) else (_dtype_of(value), value))
            for name, value in arrays.items()
        }
        self.tensors = {
            name: TensorInfo(name, dtype, value.shape, Path("none"), 0, value.nbytes)
            for name, (dtype, value) in self.arrays.items()
        }
        self.encoded: dict[str, Any] = {}
        self.elements_read: Counter[str] = Counter()
        self.released: list[str] = []
        self._lock = threading.Lock()

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Any:
        array = self.arrays[name][1]
        part = array[start:stop] if array.ndim else array
        with self._lock:
            self.elements_read[name] += part.size
        return part

    def release(self, name: str) -> None:
        self.released.append(name)


def _dtype_of(array: Any) -> str:
    return next(name for name, dtype in _NUMPY.items() if name != "BF16" and dtype == array.dtype)
