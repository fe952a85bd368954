# SPDX-License-Identifier: Apache-2.0
"""Smoothing: powers of two that move between a norm's weight and the columns of the matrices that read the norm.

Per-token int8 rounds a row of activations by its largest value. Columns of large activations are divided by powers of
two in the norm before, and multiplied in the matrices (SmoothQuant, arXiv:2211.10438). Powers of two change no bit of
a float's mantissa, so that the model without rounding stays the same.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.expressions import Tensors, TensorSource
from qeff_zoo.checkpoint.floats import to_float32

Array = np.ndarray[Any, np.dtype[Any]]
#: Path in a package's folder. Nothing that computes with the package reads it.
SMOOTHING = "evidence/smoothing.safetensors"
_SHIFTED = "shifted"


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Powers of two by parameter.

    Args:
        exponents: Exponents along the last axis of a parameter, int8, by its name.
        shifted: Names of norms that multiply by 1 more than their weight.
    """

    exponents: Mapping[str, Array] = field(default_factory=dict)
    shifted: Collection[str] = ()

    def __bool__(self) -> bool:
        """Whether any parameter changes."""
        return bool(self.exponents)

    def apply(self, name: str, values: Array) -> Array:
        """Return the values of a parameter after smoothing.

        Args:
            name: Name of the parameter.
            values: Values in float32, or some of their rows.
        """
        factors = np.ldexp(np.float32(1), self.exponents[name])
        if name not in self.shifted:
            return values * factors
        return (values + np.float32(1)) * factors - np.float32(1)

    def of_tensors(self, tensors: Mapping[str, str]) -> "Smoothing":
        """Return the same by other names.

        Args:
            tensors: Other name of each parameter.
        """
        return Smoothing(
            exponents={tensors[name]: one for name, one in self.exponents.items()},
            shifted={tensors[name] for name in self.shifted},
        )

    def save(self, folder: Path) -> None:
        """Write the file of a package.

        Args:
            folder: Folder of the package.
        """
        from safetensors.numpy import save_file

        path = folder / SMOOTHING
        path.parent.mkdir(exist_ok=True)
        save_file(dict(self.exponents), path, {_SHIFTED: json.dumps(sorted(self.shifted))})

    @staticmethod
    def load(path: Path | None) -> "Smoothing":
        """Read the file of a package; nothing for a package without one."""
        from safetensors import safe_open

        if path is None:
            return Smoothing()
        with safe_open(path, "np") as file:
            exponents = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
            return Smoothing(exponents=exponents, shifted=json.loads(file.metadata()[_SHIFTED]))


class Smoothed:
    """A source of tensors after smoothing; those that change are float32.

    Args:
        source: The checkpoint.
        smoothing: Smoothing by names of tensors.
    """

    def __init__(self, source: TensorSource, smoothing: Smoothing) -> None:
        self._source, self._smoothing = source, smoothing
        self._tensors = {
            name: replace(one, dtype="F32") if name in smoothing.exponents else one
            for name, one in source.tensors.items()
        }

    @property
    def tensors(self) -> Tensors:
        """Every tensor, by name."""
        return self._tensors

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        """Read rows `start:stop` of a tensor; BF16 as uint16."""
        read = self._source.read(name, start, stop)
        if name not in self._smoothing.exponents:
            return read
        smoothing = self._smoothing
        if read.ndim == 1 and (start or stop is not None):  # values of a norm
            smoothing = Smoothing(
                exponents={name: smoothing.exponents[name][start:stop]},
                shifted=smoothing.shifted,
            )
        return smoothing.apply(name, to_float32(read, self._source.tensors[name].dtype))

    def release(self, name: str) -> None:
        """Give back the memory behind a tensor that has been read."""
        self._source.release(name)

    @property
    def encoded(self) -> Mapping[str, Any]:
        """Tensors that are stored in fewer bits."""
        return self._source.encoded

    def read_stored(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        """Read rows of a tensor that an encoded tensor is stored in."""
        return self._source.read_stored(name, start, stop)
