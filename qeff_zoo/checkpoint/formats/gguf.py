# SPDX-License-Identifier: Apache-2.0
"""GGUF: rows of blocks, each with its scale; all but floats, and grids of small integers, are integers times scales.

Source: https://github.com/ggml-org/llama.cpp, ggml/src/ggml-quants.c, `dequantize_row_*`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Part,
    SmallFactors,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.expressions import index, sources_of
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.gguf import names as gguf_names
from qeff_zoo.checkpoint.gguf.index import TYPES
from qeff_zoo.checkpoint.types import Array, Read

#: Reader of one field of blocks, (rows, blocks, bytes) uint8.
_Field = Callable[[Array], Array]
#: Types that safetensors has too.
_PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
#: Types of blocks that index grids, which gguf-py has.
_GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
_NBYTES = {name: nbytes for name, _, nbytes in TYPES.values()}
_LENGTHS = {name: length for name, length, _ in TYPES.values()}
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
#: Twice the values of E2M1, whose scales are therefore halved.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A type of blocks of integers.

    Args:
        nbytes: Bytes of a block.
        bits: Bits of an integer.
        group: Group size, in values.
        integers: Reader of (rows, blocks, values of a block).
        scales: Scales.
        offsets: Offsets; None for none.
        zero: Zero point of all groups; None for the middle.
    """

    nbytes: int
    bits: int
    group: int
    integers: _Field
    scales: "_Factors"
    offsets: "_Factors | None" = None
    zero: int | None = None


@dataclass(frozen=True)
class _Factors:
    """Scales or offsets of a type.

    Args:
        floats: Reader of (rows, blocks, floats of a block), float32: one for each group, or for all.
        numbers: Reader of (rows, blocks, groups of a block), int8, by which the float is multiplied; None for none.
        type: Type that has the floats.
    """

    floats: _Field
    numbers: _Field | None = None
    type: str = "float16"

    def __call__(self, blocks: Array) -> Array:
        """Read (rows, blocks, groups of a block), float32."""
        floats = self.floats(blocks)
        factors: Array = floats if self.numbers is None else floats * self.numbers(blocks)
        return factors


def encodings(stored: Stored) -> Encodings:
    """Return the quantized tensors of a GGUF checkpoint.

    Args:
        stored: Stored tensors, with the model's configuration and the file's metadata in `config`: "model", "metadata".

    Raises:
        CheckpointError: A tensor has another shape than its name requires.
        UnsupportedModelError: A tensor has no counterpart in the float model.
    """
    found = gguf_names.places_of(
        stored.name, stored.config["model"], stored.config["metadata"], stored.tensors
    )
    encoded = {name: _changed(stored, name, change) for name, change in found.changes.items()}
    values = dict(found.values)
    for name, (stack, number) in found.experts.items():
        if stored.tensors[stack].dtype in _PLAIN:
            values[name] = index(number, stack)
        else:
            encoded[name] = _blocks(stored, stack, number)
    for name in {source for value in found.values.values() for source in sources_of(value)}:
        if name not in encoded and stored.tensors[name].dtype not in _PLAIN:
            encoded[name] = _blocks(stored, name, None)
    return Encodings(encoded=encoded, values=values, beside=found.beside)


def _changed(stored: Stored, name: str, change: str) -> Encoded:
    """Return a small tensor whose values a converter changed."""
    info = stored.tensor(name, ("F32", "F16", "BF16"))

    def values(read: Read, start: int, stop: int) -> Array:
        floats = to_float32(read(name, start, stop), info.dtype)
        changed: Array = floats - np.float32(1) if change == "minus one" else np.log(-floats)
        return changed

    return Encoded(shape=info.shape, sources=(name,), about=f"{info.dtype} {change}", values=values)


def _blocks(stored: Stored, name: str, item: int | None) -> Encoded:
    """Return a matrix of blocks, or one matrix of a stack."""
    info = stored.tensors[name]
    shape = info.shape if item is None else info.shape[1:]
    if len(shape) < 2:
        raise stored.wrong(f"tensor {name!r} is {info.dtype} {list(info.shape)}", "a matrix")

    def raw(read: Read, start: int, stop: int) -> Array:
        return (
            read(name, start, stop) if item is None else read(name, item, item + 1)[0, start:stop]
        )

    if info.dtype in _GRIDS:
        values = _of_grids(raw, info.dtype)
        return Encoded(shape=shape, sources=(name,), about=f"{info.dtype}, grids", values=values)
    kind, groups = _KINDS[info.dtype], shape[-1] // _KINDS[info.dtype].group
    blocks = shape[-1] // _LENGTHS[info.dtype]

    def part(field: _Field, count: int) -> Part:
        def read_part(read: Read, start: int, stop: int) -> Array:
            octets = raw(read, start, stop)
            found = field(octets.reshape(*octets.shape[:-1], -1, kind.nbytes))
            if found.dtype == np.float32 and not np.isfinite(found).all():
                raise stored.wrong(f"scales of {name!r} are infinite or no numbers", "finite ones")
            return found.reshape(*octets.shape[:-1], count)

        return read_part

    def small(factors: _Factors) -> SmallFactors | None:
        if factors.numbers is None:
            return None
        return SmallFactors(
            groups=groups // blocks,
            numbers=part(factors.numbers, groups),
            halves=part(factors.floats, blocks),
        )

    def zeros(read: Read, start: int, stop: int) -> Array:
        return np.full((stop - start, *shape[1:-1], groups), kind.zero, np.uint8)

    return of_integers(
        shape,
        (name,),
        Integers(
            bits=kind.bits,
            group=kind.group,
            integers=part(kind.integers, shape[-1]),
            scales=part(kind.scales, groups),
            zeros=None if kind.zero is None else zeros,
            offsets=part(kind.offsets, groups) if kind.offsets else None,
            scale=kind.scales.type,
            small_scales=small(kind.scales),
            small_offsets=small(kind.offsets) if kind.offsets else None,
        ),
    )


def _of_grids(raw: Part, dtype: str) -> Part:
    def values(read: Read, start: int, stop: int) -> Array:
        from gguf import GGMLQuantizationType, quants

        octets = np.ascontiguousarray(raw(read, start, stop))
        decoded: Array = quants.dequantize(octets, GGMLQuantizationType[dtype])
        return decoded

    return values


def _half(at: int, numbers: _Field | None = None, sign: float = 1) -> _Factors:
    """Return factors of a float16 of each block."""

    def field(blocks: Array) -> Array:
        halves = blocks[..., at : at + 2].view("<f2").astype(np.float32)
        read: Array = halves if sign == 1 else halves * np.float32(sign)
        return read

    return _Factors(field, numbers)


def _nibbles(octets: Array) -> Array:
    """Return the low halves of the octets of the last axis, then the high ones."""
    return _by_place(octets, octets.shape[-1], 4)


def _by_place(octets: Array, run: int, bits: int = 2) -> Array:
    """Return the fields of octets by place: for each run of octets first the lowest fields, and so on."""
    # What is copied is copied by runs, and what is computed lies together: octet by octet takes six times as long.
    whole = np.ascontiguousarray(octets.view(f"V{octets.shape[-1]}")).view(np.uint8)
    parts = [(whole >> place) & np.uint8((1 << bits) - 1) for place in range(0, 8, bits)]
    fields: Array = np.stack([part.view(f"V{run}") for part in parts], -1).view(np.uint8)
    return fields.reshape(*octets.shape[:-1], -1)


def _nibbles_of_runs(octets: Array, run: int) -> Array:
    return _by_place(octets, run, 4)


def _fifth(bits_at: int, low_at: int) -> _Field:
    def field(blocks: Array) -> Array:
        high = np.unpackbits(blocks[..., bits_at : bits_at + 4], axis=-1, bitorder="little")
        return _joined(_nibbles(blocks[..., low_at:]), high, 4)

    return field


def _k_six_bits(blocks: Array, which: int) -> Array:
    """Return eight six-bit scales (0) or offsets (1) from the twelve octets that have both."""
    octets = blocks[..., 4:16]
    first = octets[..., 4 * which : 4 * which + 4]
    rest = (octets[..., 8:] >> (4 * which)) & 15
    return np.concatenate([first & 63, rest | ((first >> 6) << 4)], -1).view(np.int8)


def _joined(low: Array, high: Array, shift: int) -> Array:
    integers: Array = low | (high << shift)
    return integers


def _q5_k(blocks: Array) -> Array:
    high = _by_place(blocks[..., 16:48], 32, 1)
    return _joined(_nibbles_of_runs(blocks[..., 48:], 32), high, 4)


def _q6_k(blocks: Array) -> Array:
    high = _by_place(blocks[..., 128:192], 32)
    return _joined(_nibbles_of_runs(blocks[..., :128], 64), high, 4)


def _q3_k(blocks: Array) -> Array:
    return _joined(_by_place(blocks[..., 32:96], 32), _by_place(blocks[..., :32], 32, 1), 2)


def _q3_k_scales(blocks: Array) -> Array:
    octets = blocks[..., 96:108]
    scales = _joined(_nibbles(octets[..., :8]), _by_place(octets[..., 8:], 4), 4)
    return scales.view(np.int8) - np.int8(32)


def _iq4_xs_scales(blocks: Array) -> Array:
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8)) & 15
    high = (blocks[..., 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    scales = _joined(low.reshape(*low.shape[:-2], 8), high.reshape(*high.shape[:-2], 8), 4)
    return scales.view(np.int8) - np.int8(32)


def _tq1_0(blocks: Array) -> Array:
    """Return digits to the base three, of which an octet holds five as a fraction of 256."""
    parts = []
    for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = 3 ** np.arange(digits, dtype=np.uint8)[:, None]
        rests = (blocks[..., None, start:stop] * powers).astype(np.uint16)  # less whole numbers
        parts.append(((rests * 3) >> 8).astype(np.uint8).reshape(*blocks.shape[:-1], -1))
    return np.concatenate(parts, -1)


def _looked_up(table: Array, codes: _Field) -> _Field:
    around_middle = (table.astype(np.int16) + 128).astype(np.uint8)
    return lambda blocks: around_middle[codes(blocks)]


def _power(blocks: Array) -> Array:
    """Return half of the power of two that is each block's scale."""
    return np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128)


def _kind(
    dtype: str, bits: int, group: int, integers: _Field, scales: _Factors, **more: Any
) -> _Kind:
    return _Kind(
        nbytes=_NBYTES[dtype], bits=bits, group=group, integers=integers, scales=scales, **more
    )


def _kinds() -> dict[str, _Kind]:
    def small(which: int) -> _Field:
        return lambda blocks: _k_six_bits(blocks, which)

    k: dict[str, Any] = {
        "scales": _half(0, small(0)),
        "offsets": _half(2, small(1)),
        "zero": 0,
    }
    q2: dict[str, Any] = {
        "scales": _half(80, lambda b: (b[..., :16] & 15).view(np.int8)),
        "offsets": _half(82, lambda b: (b[..., :16] >> 4).view(np.int8)),
        "zero": 0,
    }
    q6_scales = _half(208, lambda b: b[..., 192:208].view(np.int8))
    power = _Factors(_power, type="float32")
    one: dict[str, Any] = {"offsets": _half(2, sign=-1), "zero": 0}
    return {
        "Q4_0": _kind("Q4_0", 4, 32, lambda b: _nibbles(b[..., 2:]), _half(0)),
        "Q4_1": _kind("Q4_1", 4, 32, lambda b: _nibbles(b[..., 4:]), _half(0), **one),
        "Q5_0": _kind("Q5_0", 5, 32, _fifth(2, 6), _half(0)),
        "Q5_1": _kind("Q5_1", 5, 32, _fifth(4, 8), _half(0), **one),
        "Q8_0": _kind("Q8_0", 8, 32, lambda b: b[..., 2:] ^ np.uint8(128), _half(0)),
        "Q2_K": _kind("Q2_K", 2, 16, lambda b: _by_place(b[..., 16:80], 32), **q2),
        "Q3_K": _kind("Q3_K", 3, 16, _q3_k, _half(108, _q3_k_scales)),
        "Q4_K": _kind("Q4_K", 4, 32, lambda b: _nibbles_of_runs(b[..., 16:], 32), **k),
        "Q5_K": _kind("Q5_K", 5, 32, _q5_k, **k),
        "Q6_K": _kind("Q6_K", 6, 16, _q6_k, q6_scales),
        "IQ4_NL": _kind(
            "IQ4_NL", 8, 32, _looked_up(_IQ4, lambda b: _nibbles(b[..., 2:])), _half(0)
        ),
        "IQ4_XS": _kind(
            *("IQ4_XS", 8, 32),
            _looked_up(_IQ4, lambda b: _nibbles_of_runs(b[..., 8:], 16)),
            _half(0, _iq4_xs_scales),
        ),
        "MXFP4": _kind("MXFP4", 8, 32, _looked_up(_E2M1, lambda b: _nibbles(b[..., 1:])), power),
        "TQ1_0": _kind("TQ1_0", 2, 256, _tq1_0, _half(52), zero=1),
        "TQ2_0": _kind("TQ2_0", 2, 256, lambda b: _by_place(b[..., :64], 32), _half(64), zero=1),
    }


_KINDS: Mapping[str, _Kind] = MappingProxyType(_kinds())
