# SPDX-License-Identifier: Apache-2.0
"""bitsandbytes: per-channel int8, or NF4 and FP4: indices into 16 floats, in blocks that share a magnitude.

    weight (rows, columns) int8, SCB (rows,) float32, of which a 127th is the scale
    NAME (octets, 1), two values an octet, the first in the high half; rows follow each other without a gap, and blocks
        cross them. NAME.quant_map (16,); NAME.absmax (blocks,) float32, or uint8 into NAME.nested_quant_map (256,),
        times NAME.nested_absmax of a block of those, plus `nested_offset`. NAME.quant_state.bitsandbytes__nf4 is JSON.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes, `functional.py`, `QuantState`.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Part,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.formats import SmallFloats
from qeff_zoo.checkpoint.formats.fields import finite, scales_of_blocks, signed, to_floats
from qeff_zoo.checkpoint.types import Array, Read

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")


def floats(config: Mapping[str, Any]) -> SmallFloats | None:
    """Return the float format of the matrices; None for integers."""
    if not config.get("load_in_4bit"):
        return None
    return SmallFloats.NF4 if config.get("bnb_4bit_quant_type") == "nf4" else SmallFloats.FP4


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of a bitsandbytes checkpoint."""
    encoded = {f"{path}.weight": _rows(stored, path) for path in stored.modules("SCB")}
    for name in sorted(stored.tensors):
        path, found, kind = name.partition(_STATE)
        if found:
            encoded[path] = _blocks(stored, path, kind)
    return Encodings(encoded=encoded)


def _rows(stored: Stored, path: str) -> Encoded:
    weight = stored.matrix(f"{path}.weight", ("I8",))
    scale = stored.tensor(f"{path}.SCB", ("F32",), weight.shape[:1])
    names = [weight.name, scale.name]
    if f"{path}.weight_format" in stored.tensors:
        names.append(f"{path}.weight_format")
        if stored.tensor(names[-1], ("U8",), ()) and stored.read(names[-1], None, None) != 0:
            raise stored.wrong(f"{weight.name!r} is in a format of GPUs", "rows: a format of 0")
    whole = scales_of_blocks(stored, scale, weight.shape, 1, weight.shape[1])

    def scales(read: Read, start: int, stop: int) -> Array:
        part: Array = whole(read, start, stop) / np.float32(127)
        return part

    integers = Integers(
        bits=8, group=weight.shape[1], integers=signed(stored, weight, 8), scales=scales
    )
    return of_integers(weight.shape, tuple(names), integers)


def _blocks(stored: Stored, name: str, kind: str) -> Encoded:
    state = _state(stored, f"{name}{_STATE}{kind}")
    shape, size = tuple(state["shape"]), state["blocksize"]
    count = math.prod(shape)
    packed = stored.tensor(name, ("U8", "F16", "BF16", "F32"))
    if packed.nbytes != -(-count // 2):
        raise stored.wrong(
            f"{name!r} has {packed.nbytes:,} bytes", f"two values of {shape} in each"
        )
    table = stored.tensor(f"{name}.quant_map", ("F32",), (16,))
    largest, names = _largest(stored, name, state, -(-count // size))
    row = math.prod(shape[1:])

    def values(read: Read, start: int, stop: int) -> Array:
        first, last = start * row, stop * row
        octets = read(name, None, None).reshape(-1).view(np.uint8)[first // 2 : -(-last // 2)]
        codes = np.stack([octets >> 4, octets & 15], -1).reshape(-1)[first % 2 :][: last - first]
        by_block = largest(read, first // size, -(-last // size))
        spread = np.repeat(by_block, size)[first % size :][: last - first]
        found: Array = finite(read(table.name, None, None), table)[codes] * spread
        return found.reshape(-1, *shape[1:])

    sources = (packed.name, table.name, f"{name}{_STATE}{kind}", *names)
    about = f"{kind} in blocks of {size}" + (", nested scales" if len(names) > 1 else "")
    return Encoded(shape=shape, sources=sources, about=about, values=values)


def _state(stored: Stored, name: str) -> Mapping[str, Any]:
    """Return the content of a tensor with JSON."""
    raw = stored.read(stored.tensor(name, ("U8",)).name, None, None)
    try:
        state = json.loads(raw.tobytes())
    except (ValueError, RecursionError):
        state = None
    fields = state if isinstance(state, dict) else {}
    shape, sizes = fields.get("shape"), [fields.get("blocksize"), fields.get("nested_blocksize", 1)]
    offset = fields.get("nested_offset", 0.0)
    if (
        not name.endswith(_KINDS)
        or not isinstance(shape, list)
        or len(shape) < 2
        or not all(type(number) is int and number > 0 for number in [*shape, *sizes])
        or not isinstance(offset, int | float)
        or not abs(offset) < 1e30
    ):
        raise stored.wrong(f"{name!r} says {str(state)[:200]!r}", "a shape and a size of blocks")
    return fields


def _largest(
    stored: Stored, name: str, state: Mapping[str, Any], blocks: int
) -> tuple[Part, list[str]]:
    """Return a reader of the largest magnitudes of blocks, and the tensors that it reads."""
    info = stored.tensor(f"{name}.absmax", ("F32", "U8"), (blocks,))
    if info.dtype == "F32":

        def plain(read: Read, start: int, stop: int) -> Array:
            return finite(to_floats(read(info.name, start, stop), info.dtype), info)

        return plain, [info.name]
    if "nested_blocksize" not in state:
        raise stored.wrong(f"{info.name!r} is U8", "F32, or a state with `nested_blocksize`")
    size, offset = state["nested_blocksize"], np.float32(state.get("nested_offset", 0.0))
    table = stored.tensor(f"{name}.nested_quant_map", ("F32",), (256,))
    outer = stored.tensor(f"{name}.nested_absmax", ("F32",), (-(-blocks // size),))

    def nested(read: Read, start: int, stop: int) -> Array:
        by_block = finite(read(outer.name, start // size, -(-stop // size)), outer)
        spread = np.repeat(by_block, min(size, blocks))[start % size :][: stop - start]
        inner = finite(read(table.name, None, None), table)[read(info.name, start, stop)]
        with np.errstate(over="ignore"):
            return finite(inner * spread + offset, outer)

    return nested, [info.name, table.name, outer.name]
