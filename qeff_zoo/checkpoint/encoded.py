# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors of a checkpoint, and the tensors of its files that store them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.safetensors_index import TensorInfo, read_metadata
from qeff_zoo.checkpoint.types import Array, Expression, Read
from qeff_zoo.errors import CheckpointError

#: Decoder of items `start:stop` of the first axis of a tensor: reader of the files, start, stop -> values.
Part: TypeAlias = Callable[[Read, int, int], Array]


@dataclass(frozen=True)
class Order:
    """Input column that multiplies each stored column.

    Args:
        find: Function that reads the order, (columns,) int64.
        digest: Digest, equal for equal orders.
    """

    find: Callable[[Read], Array]
    digest: str

    def __call__(self, read: Read) -> Array:
        """Read the order."""
        return self.find(read)


@dataclass(frozen=True, kw_only=True)
class SmallFactors:
    """Scales of groups, or their offsets, in two parts: `number * half`, with a half for several adjacent groups.

    Args:
        groups: Number of groups that share a half.
        numbers: Numbers, (…, rows, groups) int8.
        halves: Halves, (…, rows, groups / `groups`) float32 with values of float16.
    """

    groups: int
    numbers: Part
    halves: Part


@dataclass(frozen=True, kw_only=True)
class Integers:
    """A tensor (…, rows, columns) of small integers with a scale per group of columns.

    `value[n, order[k]] = (integer[n, k] - zero[n, g]) * scale[n, g] - minimum[n, g]`, with `g = k // group`.

    Args:
        bits: Bits of an integer: 2 to 8.
        group: Group size, in columns.
        integers: Integers, (…, rows, columns) uint8.
        scales: Scales, (…, rows, groups) float32.
        zeros: Zero points, (…, rows, groups) uint8; None for the middle, `2 ** (bits - 1)`.
        offsets: Offsets, (…, rows, groups) float32; None for none.
        order: Order of the input columns that multiply the integers (act-order); None for the natural one.
        scale: Type that has the scales and offsets, or the halves of small factors: "float32" or "float16".
        small_scales: Parts of the scales; None if they are floats.
        small_offsets: Parts of the offsets; None if they are floats, or there are none.
    """

    bits: int
    group: int
    integers: Part
    scales: Part
    zeros: Part | None = None
    offsets: Part | None = None
    order: Order | None = None
    scale: str = "float32"
    small_scales: SmallFactors | None = None
    small_offsets: SmallFactors | None = None

    def values(self, read: Read, start: int, stop: int) -> Array:
        """Dequantize items `start:stop` of the first axis to float32."""
        integers = self.integers(read, start, stop)
        columns = integers.shape[-1]

        def spread(by_group: Array) -> Array:
            return np.repeat(by_group, self.group, -1)[..., :columns]

        middle = np.float32(1 << (self.bits - 1))
        zeros = spread(self.zeros(read, start, stop).astype(np.float32)) if self.zeros else middle
        values: Array = (integers.astype(np.float32) - zeros) * spread(
            self.scales(read, start, stop)
        )
        if self.offsets:
            values -= spread(self.offsets(read, start, stop))
        if self.order:
            values = values[..., np.argsort(self.order(read), kind="stable")]
        return values


@dataclass(frozen=True, kw_only=True)
class Floats:
    """A tensor (…, rows, columns) of 8-bit floats with a scale per group of columns.

    `value[n, k] = float[n, k] * scale[n, k // group]`

    Args:
        element: Type of the floats: "float8_e4m3fn" or "float8_e5m2".
        scale: Type of the scales in the checkpoint: "float32", "float16" or "bfloat16".
        group: Group size, in columns.
        octets: Floats, (…, rows, columns) uint8.
        scales: Scales, (…, rows, groups) float32.
    """

    element: str
    scale: str
    group: int
    octets: Part
    scales: Part


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A quantized tensor of the float model.

    Args:
        shape: Shape of its values; groups lie along the last axis, the columns.
        sources: Names of the stored tensors that it reads.
        about: Description for people: "int4 in groups of 128, zero points".
        values: Function that dequantizes it to float32.
        integers: Integer format; None for tables and small floats.
        floats: Format of 8-bit floats; None for all others, and for scales of columns or in powers of two.
        block_rows: Rows of the blocks that have a scale each; 0 for one scale of all rows.
    """

    shape: tuple[int, ...]
    sources: tuple[str, ...]
    about: str
    values: Part
    integers: Integers | None = None
    floats: Floats | None = None
    block_rows: int = 1

    @property
    def is_per_channel(self) -> bool:
        """Whether it is symmetric int8 with one scale per row."""
        one = self.integers
        if one is None or one.zeros or one.offsets or one.order:
            return False
        return one.bits == 8 and one.group >= self.shape[-1]


def of_integers(shape: tuple[int, ...], sources: tuple[str, ...], integers: Integers) -> Encoded:
    """Return a quantized tensor of integers.

    Args:
        shape: Shape of its values.
        sources: Names of the stored tensors that it reads.
        integers: Format of the integers.
    """
    one_scale = integers.group >= shape[-1]
    about = [
        f"int{integers.bits}"
        + (", per-channel" if one_scale else f" in groups of {integers.group}")
    ]
    about += ["zero points"] if integers.zeros else []
    about += ["offsets"] if integers.offsets else []
    about += ["act-order"] if integers.order else []
    return Encoded(
        shape=shape,
        sources=sources,
        about=", ".join(about),
        values=integers.values,
        integers=integers,
    )


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Stored tensors of a quantized checkpoint.

    Args:
        name: Name of the checkpoint, for messages.
        config: `quantization_config`.
        tensors: Tensors by name, from checked headers.
        read: Reader of rows: BF16 as uint16, 8-bit floats as uint8, integers unchanged.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    read: Read

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the files."""
        paths = sorted({info.path for info in self.tensors.values()})
        return {key: text for path in paths for key, text in read_metadata(path).items()}

    def modules(self, *suffixes: str) -> list[str]:
        """Return the sorted paths of modules that have a tensor with one of these suffixes.

        Args:
            suffixes: Suffixes such as "qweight".
        """
        parts = (name.rpartition(".") for name in self.tensors)
        return sorted({path for path, _, suffix in parts if suffix in suffixes})

    def tensor(
        self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None
    ) -> TensorInfo:
        """Return a required tensor.

        Args:
            name: Name in the files.
            dtypes: Accepted types.
            shape: Required shape; None for any.

        Raises:
            CheckpointError: The tensor is missing, or has another type or shape.
        """
        info = self.tensors.get(name)
        wanted = f"{' or '.join(dtypes)}{'' if shape is None else f' {list(shape)}'}"
        if info is None or info.dtype not in dtypes or shape not in (None, info.shape):
            state = f"is {info.dtype} {list(info.shape)}" if info else "is missing"
            raise self.wrong(f"tensor {name!r} {state}", wanted)
        return info

    def matrix(self, name: str, dtypes: tuple[str, ...], *ranks: int) -> TensorInfo:
        """Return a required tensor without empty axes.

        Args:
            name: Name in the files.
            dtypes: Accepted types.
            ranks: Allowed numbers of axes; two by default.

        Raises:
            CheckpointError: The tensor is missing, or has another type or shape.
        """
        info = self.tensor(name, dtypes)
        if len(info.shape) not in (ranks or (2,)) or not all(info.shape):
            raise self.wrong(f"tensor {name!r} is {list(info.shape)}", "a matrix that is not empty")
        return info

    def group(self, size: Any, columns: int) -> int:
        """Return the group size in columns.

        Args:
            size: Group size of the configuration: a number; one below 1, or None, for the whole row.
            columns: Number of columns of the row.

        Raises:
            CheckpointError: The size is not an integer.
        """
        if size is None:
            return columns
        if type(size) is not int:
            raise self.wrong(f"its group size is {size!r}", "a whole number")
        return min(size, columns) if size > 0 else columns

    def wrong(self, what: str, expected: str) -> CheckpointError:
        """Return an error about the content of the checkpoint.

        Args:
            what: Description of the fault: "tensor 'x' is missing".
            expected: Expected content.
        """
        return CheckpointError(
            f"{self.name!r} is quantized with {self.config.get('quant_method')!r}, but {what}. Expected {expected}. "
            "Get the checkpoint again from its source."
        )


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """Quantized tensors of a checkpoint.

    Args:
        encoded: Quantized tensors by name.
        values: Expressions for the names of the float model that are not plain stored tensors.
        beside: Stored tensors that the float model lacks and no value requires, such as scales of activations.
    """

    encoded: Mapping[str, Encoded]
    values: Mapping[str, Expression] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
