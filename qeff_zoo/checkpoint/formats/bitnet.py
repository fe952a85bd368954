# SPDX-License-Identifier: Apache-2.0
"""BitNet: -1, 0 and 1 times a scale for the whole matrix.

    weight (rows / 4, columns) uint8: row r plus one has two bits of octet r % (rows / 4); the first rows are lowest
    weight_scale (1,): divisor in "bitlinear", factor in "autobitlinear"

Online, a weight of floats is rounded as it is read: to -1, 0 or 1 times the mean of its magnitudes. Activations are not
rounded here. Source: transformers, `integrations/bitnet.py`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import Encoded, Encodings, Integers, Stored, of_integers
from qeff_zoo.checkpoint.formats.fields import FLOATS, finite, to_floats
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Read

_AT_ONCE = 1 << 22  # numbers of a weight whose mean is taken
_LEAST = 1e-5  # of a mean


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    if config.get("use_rms_norm"):
        return "BitNet with norms before its products (`use_rms_norm`)"
    kind, mode = config.get("linear_class", "bitlinear"), config.get("quantization_mode", "offline")
    if kind not in ("bitlinear", "autobitlinear") or mode not in ("offline", "online"):
        return f"BitNet of the class {kind!r}, {mode!r}; bitlinear and autobitlinear can be read, offline or online"
    return ""


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of a BitNet checkpoint."""
    auto = stored.config.get("linear_class") == "autobitlinear"
    if auto and stored.config.get("quantization_mode") == "online":
        return Encodings(encoded=_online(stored))
    return Encodings(
        encoded={
            f"{path}.weight": _offline(stored, path, auto)
            for path in stored.modules("weight_scale")
        }
    )


def _offline(stored: Stored, path: str, multiplies: bool) -> Encoded:
    weight = stored.matrix(f"{path}.weight", ("U8",))
    scale = stored.tensor(f"{path}.weight_scale", FLOATS)
    if int(np.prod(scale.shape)) != 1:
        raise stored.wrong(f"{scale.name!r} is {list(scale.shape)}", "one number")
    quarter, columns = weight.shape

    def integers(read: Read, start: int, stop: int) -> Array:
        rows = np.arange(start, stop)
        octets = read(weight.name, None, None)[rows % quarter]
        fields: Array = (octets >> (2 * (rows // quarter)).astype(np.uint8)[:, None]) & np.uint8(3)
        return fields

    def scales(read: Read, start: int, stop: int) -> Array:
        one = to_floats(read(scale.name, None, None), scale.dtype).reshape(1, 1)
        if not multiplies:
            with np.errstate(all="ignore"):
                one = np.float32(1) / one
        return np.repeat(finite(one, scale), stop - start, 0)

    found = Integers(bits=2, group=columns, integers=integers, scales=scales, zeros=_ones)
    return of_integers((quarter * 4, columns), (weight.name, scale.name), found)


def _ones(read: Read, start: int, stop: int) -> Array:
    return np.ones((stop - start, 1), np.uint8)


def _online(stored: Stored) -> dict[str, Encoded]:
    """Return the matrices that are rounded when read: all but embeddings, the head, and exclusions of the config."""
    kept = stored.config.get("modules_to_not_convert")
    kept = ["lm_head", *map(str, kept if isinstance(kept, list) else ())]
    found = {}
    for path in stored.modules("weight"):
        info = stored.tensors[f"{path}.weight"]
        left_out = "embed" in path or any(f".{part}." in f".{path}." for part in kept)
        if len(info.shape) == 2 and not left_out:
            found[info.name] = _rounded(stored.matrix(info.name, FLOATS))
    return found


def _rounded(info: TensorInfo) -> Encoded:
    rows, columns = info.shape
    step = max(1, _AT_ONCE // columns)

    @cache
    def mean(read: Read) -> Array:
        """Return the mean magnitude of the whole matrix, (1, 1), which every piece requires."""
        total = 0.0
        for start in range(0, rows, step):
            piece = to_floats(read(info.name, start, min(start + step, rows)), info.dtype)
            total += float(np.abs(piece, out=piece).sum(dtype=np.float64))
        return finite(np.full((1, 1), max(total / (rows * columns), _LEAST), np.float32), info)

    def integers(read: Read, start: int, stop: int) -> Array:
        values = to_floats(read(info.name, start, stop), info.dtype)
        values *= np.float32(1) / mean(read)
        return (np.clip(np.rint(values), -1, 1) + 1).astype(np.uint8)

    def scales(read: Read, start: int, stop: int) -> Array:
        return np.repeat(np.float32(1) / (np.float32(1) / mean(read)), stop - start, 0)

    found = Integers(bits=2, group=columns, integers=integers, scales=scales, zeros=_ones)
    return of_integers(info.shape, (info.name,), found)
