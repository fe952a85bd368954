# SPDX-License-Identifier: Apache-2.0
"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the inputs, possibly sorted by importance (act-order).

    qweight (columns * bits / 32, rows) int32, qzeros (groups, rows * bits / 32) int32, scales (groups, rows),
    g_idx (columns,) int32: the group of each column

Version 1 stores zero points less one, subtracted from the whole 32-bit word, borrows and all. Source:
https://github.com/ModelCloud/GPTQModel, `BaseQuantLinear`, `convert_gptq_v1_to_v2_format`.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Order,
    Part,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.formats.fields import FLOATS, float_columns, unpack, unpack_some
from qeff_zoo.checkpoint.types import Array, Read

#: Axis of a matrix's rows in each stored tensor, by the end of its name; None for a tensor without them.
ROWS = {"qweight": 1, "qzeros": 1, "scales": 1, "g_idx": None}
_BITS = (2, 3, 4, 8)
_VERSIONS = {"gptq": 1, "gptq_v2": 2}


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    version = _version(config)
    if version not in _VERSIONS:
        return f"GPTQ in the format {version!r}; {' and '.join(_VERSIONS)} can be read"
    wrong = {str(bits) for bits, _ in _sizes(config) if type(bits) is not int or bits not in _BITS}
    return f"GPTQ of {' and '.join(sorted(wrong))} bits; {_BITS} can be read" if wrong else ""


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of a GPTQ checkpoint."""
    version = _VERSIONS[_version(stored.config)]
    return Encodings(
        encoded={
            f"{path}.weight": matrix(stored, path, version) for path in stored.modules("qweight")
        }
    )


def _version(config: Mapping[str, Any]) -> str:
    return str(config.get("checkpoint_format") or config.get("format") or "gptq")


def _sizes(config: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return bits and group size: those of the config, then those of modules with their own."""
    own = [config]
    for key in ("dynamic", "extra_config"):  # GPTQModel's, AutoRound's
        rules = config.get(key)
        own += (
            [rule for rule in rules.values() if isinstance(rule, dict)]
            if isinstance(rules, dict)
            else []
        )
    sizes = [
        (one.get("bits", config.get("bits")), one.get("group_size", config.get("group_size")))
        for one in own
    ]
    return [size for size in sizes if size[0] != 16] or sizes  # 16: as it was


def matrix(stored: Stored, path: str, version: int) -> Encoded:
    """Find one matrix.

    Args:
        stored: Quantized checkpoint with `bits` and `group_size` in its config.
        path: Path of the module.
        version: Version of the storage of zero points, 1 or 2.
    """
    weight = stored.matrix(f"{path}.qweight", ("I32",))
    zeros = stored.matrix(f"{path}.qzeros", ("I32",))
    words, rows = weight.shape
    fitting = set()
    for bits, size in _sizes(stored.config):
        columns = words * 32 // bits
        group = stored.group(size, columns)
        if zeros.shape == (-(-columns // group), -(-rows * bits // 32)) and words * 32 % bits == 0:
            fitting.add((bits, group))
    if len(fitting) != 1:
        raise stored.wrong(
            f"{weight.name!r} is {list(weight.shape)} and {zeros.name!r} {list(zeros.shape)}",
            "sizes of one of its `bits` and `group_size`",
        )
    [(bits, group)] = fitting
    columns = words * 32 // bits
    scales = stored.tensor(f"{path}.scales", FLOATS, (zeros.shape[0], rows))
    names = [weight.name, zeros.name, scales.name]
    order = None
    if stored.config.get("desc_act") or f"{path}.g_idx" in stored.tensors:
        names.append(f"{path}.g_idx")
        order = order_of_groups(stored, names[-1], columns, group)
    integers = Integers(
        bits=bits,
        group=group,
        integers=_integers(weight.name, bits, order),
        scales=float_columns(scales),
        zeros=_zeros(zeros.name, bits, version),
        order=order,
    )
    return of_integers((rows, columns), tuple(names), integers)


def order_of_groups(stored: Stored, name: str, columns: int, group: int) -> Order | None:
    """Return the columns sorted by their group; None if they are in order.

    Args:
        stored: The checkpoint.
        name: Name of the tensor with the group of each column.
        columns: Number of columns.
        group: Group size of all groups but the last.

    Raises:
        CheckpointError: A group has another size.
    """
    info = stored.tensor(name, ("I32", "I64"), (columns,))
    index = stored.read(info.name, None, None)
    if np.array_equal(index, np.arange(columns) // group):
        return None
    groups = -(-columns // group)
    inside = ((index >= 0) & (index < groups)).all()
    counts = np.bincount(index, minlength=groups) if inside else np.zeros(1)
    if not inside or not (counts[:-1] == group).all():
        raise stored.wrong(
            f"{name!r} makes groups of {sorted(set(counts.tolist()))[:5]} columns", f"{group} each"
        )
    digest = hashlib.sha256(np.ascontiguousarray(index, np.int64).tobytes()).hexdigest()
    return Order(partial(_order, name, np.min_scalar_type(groups)), digest)


def _order(name: str, dtype: "np.dtype[Any]", read: Read) -> Array:
    return np.argsort(read(name, None, None).astype(dtype), kind="stable")  # fast if 16 bits do


def _integers(name: str, bits: int, order: Order | None) -> Part:
    """Return a reader of the rows of a matrix whose columns are packed in words."""

    def part(read: Read, start: int, stop: int) -> Array:
        words = np.ascontiguousarray(read(name, None, None)[:, start:stop].T)
        fields = unpack(words, bits)
        return fields if order is None else np.take(fields, order(read), -1)

    return part


def _zeros(name: str, bits: int, version: int) -> Part:
    def part(read: Read, start: int, stop: int) -> Array:
        words = read(name, None, None).view(np.uint32)
        if version == 1 and 32 % bits == 0:
            words = words + np.uint32(sum(1 << place for place in range(0, 32, bits)))
        fields = unpack_some(words, bits, start, stop)
        if version == 1 and 32 % bits:
            fields = (fields + 1) & np.uint8((1 << bits) - 1)
        return np.ascontiguousarray(fields.T)

    return part
