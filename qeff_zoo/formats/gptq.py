# SPDX-License-Identifier: Apache-2.0
"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the inputs, which may have been sorted by importance.

    qweight (columns * bits / 32, rows) int32, qzeros (groups, rows * bits / 32) int32, scales (groups, rows),
    g_idx (columns,) int32: the group of each column

Version 1 stores zero points less one, subtracted from the whole 32-bit word, borrows and all. Source:
https://github.com/ModelCloud/GPTQModel, `BaseQuantLinear`, `convert_gptq_v1_to_v2_format`.
"""

from functools import partial

import numpy as np

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.formats.encoded import Array, Encoded, Encodings, Integers, Part, Stored, of_integers
from qeff_zoo.formats.fields import float_columns, unpack
from qeff_zoo.weights.expressions import Read

_FLOATS = ("F16", "BF16", "F32")
_BITS = (2, 3, 4, 8)
_VERSIONS = {"gptq": 1, "gptq_v2": 2}


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of a GPTQ checkpoint."""
    config = stored.config
    version = str(config.get("checkpoint_format") or config.get("format") or "gptq")
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{stored.name!r} is GPTQ in the format {version!r}. Expected {' or '.join(_VERSIONS)}. Use such a "
            "checkpoint of the model."
        )
    if config.get("bits") not in _BITS:
        raise stored.wrong(f"`bits` is {config.get('bits')!r}", f"one of {_BITS}")
    return Encodings(
        encoded={
            f"{path}.weight": matrix(stored, path, _VERSIONS[version])
            for path in stored.modules("qweight")
        }
    )


def matrix(stored: Stored, path: str, version: int) -> Encoded:
    """Find one matrix.

    Args:
        stored: With `bits` and `group_size` in its config.
        path: Of the module.
        version: 1 or 2, by how zero points are stored.
    """
    bits = int(stored.config["bits"])
    weight = stored.tensor(f"{path}.qweight", ("I32",))
    if len(weight.shape) != 2 or weight.shape[0] * 32 % bits:
        raise stored.wrong(
            f"{weight.name!r} is {list(weight.shape)}", f"a matrix of {bits}-bit fields"
        )
    columns, rows = weight.shape[0] * 32 // bits, weight.shape[1]
    group = int(stored.config.get("group_size", -1))
    group = columns if group <= 0 else group
    groups = -(-columns // group)
    zeros = stored.tensor(f"{path}.qzeros", ("I32",), (groups, -(-rows * bits // 32)))
    scales = stored.tensor(f"{path}.scales", _FLOATS, (groups, rows))
    names = [weight.name, zeros.name, scales.name]
    order = None
    if stored.config.get("desc_act") or f"{path}.g_idx" in stored.tensors:
        index = stored.tensor(f"{path}.g_idx", ("I32", "I64"), (columns,))
        names.append(index.name)
        if not (stored.read(index.name, None, None) == np.arange(columns) // group).all():
            order = partial(_order, stored, index.name, group)
            order(stored.read)  # refuses groups of unequal size
    integers = Integers(
        bits=bits,
        group=group,
        integers=_integers(weight.name, bits, order),
        scales=float_columns(scales),
        zeros=_zeros(zeros.name, bits, version),
        order=order,
    )
    return of_integers((rows, columns), tuple(names), integers)


def _order(stored: Stored, name: str, group: int, read: Read) -> Array:
    """Return the columns sorted by their group; each but the last must have as many as it should."""
    index = read(name, None, None)
    counts = np.bincount(index, minlength=1) if (index >= 0).all() else np.zeros(1)
    if len(counts) != -(-len(index) // group) or not (counts[:-1] == group).all():
        raise stored.wrong(
            f"{name!r} makes groups of {sorted(set(counts.tolist()))[:5]} columns", f"{group} each"
        )
    return np.argsort(index, kind="stable")


def _integers(name: str, bits: int, order: "partial[Array] | None") -> Part:
    """Return what reads rows of a matrix that is stored word by word of its columns."""

    def part(read: Read, start: int, stop: int) -> Array:
        words = np.ascontiguousarray(read(name, None, None)[:, start:stop].T)
        fields = unpack(words, bits)
        return fields if order is None else np.ascontiguousarray(fields[:, order(read)])

    return part


def _zeros(name: str, bits: int, version: int) -> Part:
    def part(read: Read, start: int, stop: int) -> Array:
        words = read(name, None, None).view(np.uint32)
        if version == 1 and 32 % bits == 0:
            words = words + np.uint32(sum(1 << place for place in range(0, 32, bits)))
        fields = unpack(words, bits)
        if version == 1 and 32 % bits:
            fields = (fields + 1) & np.uint8((1 << bits) - 1)
        return np.ascontiguousarray(fields[:, start:stop].T)

    return part
