# SPDX-License-Identifier: Apache-2.0
"""MLX, Apple's: integers in groups with a scale and a bias, or small floats with scales, as mlx-lm writes them.

    weight          (…, rows, columns * bits / 32) uint32, dense from the lowest bit: integers, E2M1 or E4M3
    scales, biases  (…, rows, groups) floats: `value = integer * scale + bias`; small floats have no biases, and
                    scales of 8 bits: exponents (mxfp4, mxfp8) or E4M3 (nvfp4)

`quantization` in config.json has the bits, the group size and the mode, and those of single modules by their path.
mlx-lm also changes the layout of some models, see `mlx_layouts`. Sources: https://github.com/ml-explore/mlx,
`mlx/ops.cpp`, `affine_dequantize` and `fp_dequantize`; https://github.com/ml-explore/mlx-lm, `utils.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import (
    Encoded,
    Encodings,
    Integers,
    Stored,
    of_integers,
)
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.formats import SmallFloats
from qeff_zoo.checkpoint.formats.fields import (
    FLOATS,
    POWER,
    halved,
    scales_of_blocks,
    small_floats,
    twice_e2m1,
    unpack,
)
from qeff_zoo.checkpoint.formats.mlx_layouts import LAYOUTS
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Read

#: Axis of a matrix's rows in each stored tensor, by the end of its name.
ROWS = {"weight": 0, "scales": 0, "biases": 0}
#: Bits of integers.
_BITS = (2, 3, 4, 5, 6, 8)
#: Mode -> its only bits and group size, and the type of its scales.
_SMALL = {"mxfp4": (4, 32, POWER), "mxfp8": (8, 32, POWER), "nvfp4": (4, 16, "F8_E4M3")}


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    model_type = config.get("model_type")
    if model_type not in LAYOUTS:
        return (
            f"an mlx checkpoint of model_type {model_type!r}, whose tensors may differ from transformers'; mlx's "
            f"{', '.join(sorted(LAYOUTS))} can be read"
        )
    for scheme in _schemes(config):
        mode, bits, group = scheme["mode"], scheme["bits"], scheme["group_size"]
        affine = mode == "affine" and bits in _BITS and type(group) is int and group > 0
        if not (affine or (mode in _SMALL and (bits, group) == _SMALL[mode][:2])):
            return (
                f"quantized by mlx in mode {mode!r}, {bits!r} bits in groups of {group!r}; affine of "
                f"{', '.join(map(str, _BITS))} bits and {', '.join(_SMALL)} can be read"
            )
    return ""


def floats(config: Mapping[str, Any]) -> SmallFloats | None:
    """Return the float format of some matrices; None for integers, which E2M1 is if doubled."""
    is_float8 = any(scheme["mode"] == "mxfp8" for scheme in _schemes(config))
    return SmallFloats.FLOAT8 if is_float8 else None


def _schemes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the scheme of most modules, and those of single ones."""
    own = [value for value in config.values() if isinstance(value, Mapping) and "bits" in value]
    return [_filled(config), *map(_filled, own)]


def _filled(scheme: Mapping[str, Any]) -> dict[str, Any]:
    mode = str(scheme.get("mode") or "affine")
    bits, group, _ = _SMALL.get(mode, (4, 64, ""))
    return {
        "mode": mode,
        "bits": scheme.get("bits") or bits,
        "group_size": scheme.get("group_size") or group,
    }


def encodings(stored: Stored) -> Encodings:
    """Find the tensors of an mlx checkpoint."""
    layout = LAYOUTS[str(stored.config["model_type"])]
    paths = stored.modules("scales")
    encoded = {f"{path}.weight": _matrix(stored, path) for path in paths}
    parts = {source for value in encoded.values() for source in value.sources}
    plain = {name: info.shape for name, info in stored.tensors.items() if name not in parts}
    values = layout.values({**plain, **{name: value.shape for name, value in encoded.items()}})
    for name, info in stored.tensors.items():
        if name in plain and layout.is_one_more(name):
            encoded[name] = _minus_one(info)
    return Encodings(encoded=encoded, values=values)


def _matrix(stored: Stored, path: str) -> Encoded:
    """Return a quantized matrix, or a stack of them."""
    own = stored.config.get(path)
    scheme = _filled(own if isinstance(own, Mapping) else stored.config)
    bits, group = scheme["bits"], scheme["group_size"]
    weight = stored.matrix(f"{path}.weight", ("U32",), 2, 3)
    if f"{path}.global_scale" in stored.tensors:
        raise stored.wrong(f"{path!r} has a second, global scale", "mlx's nvfp4 without it")
    *lead, words = weight.shape
    shape = (*lead, words * 32 // bits)
    if words * 32 % bits or shape[-1] % group:
        raise stored.wrong(
            f"{weight.name!r} has {words} words a row", f"{bits} bits in whole groups of {group}"
        )
    if scheme["mode"] == "affine":
        return _affine(stored, weight, shape, bits, group)
    scales = stored.tensor(f"{path}.scales", ("U8",), (*lead, shape[-1] // group))
    scales = replace(scales, dtype=_SMALL[scheme["mode"]][2])
    by_group = scales_of_blocks(stored, scales, shape, 1, group)
    if scheme["mode"] == "mxfp8":
        octets = replace(weight, dtype="F8_E4M3", shape=shape)
        return small_floats(octets, by_group, scales, group, "mxfp8")
    integers = Integers(bits=8, group=group, integers=twice_e2m1(weight), scales=halved(by_group))
    return replace(
        of_integers(shape, (weight.name, scales.name), integers), about=str(scheme["mode"])
    )


def _affine(
    stored: Stored, weight: TensorInfo, shape: tuple[int, ...], bits: int, group: int
) -> Encoded:
    """Return a matrix of integers, each times a scale plus a bias."""
    path = weight.name.removesuffix(".weight")
    grid = (*shape[:-1], shape[-1] // group)
    scale = stored.tensor(f"{path}.scales", FLOATS, grid)
    bias = stored.tensor(f"{path}.biases", FLOATS, grid)
    scales = scales_of_blocks(stored, scale, shape, 1, group)
    biases = scales_of_blocks(stored, bias, shape, 1, group)
    middle = np.float32(1 << (bits - 1))

    def integers(read: Read, start: int, stop: int) -> Array:
        return unpack(read(weight.name, start, stop), bits)

    def offsets(read: Read, start: int, stop: int) -> Array:
        negative: Array = -biases(read, start, stop) - middle * scales(read, start, stop)
        return negative

    def values(read: Read, start: int, stop: int) -> Array:
        by_group = (
            integers(read, start, stop).astype(np.float32).reshape(stop - start, *grid[1:], group)
        )
        by_group *= scales(read, start, stop)[..., None]
        by_group += biases(read, start, stop)[..., None]
        return by_group.reshape(stop - start, *shape[1:])

    found = Integers(bits=bits, group=group, integers=integers, scales=scales, offsets=offsets)
    names = (weight.name, scale.name, bias.name)
    return replace(of_integers(shape, names, found), values=values)


def _minus_one(info: TensorInfo) -> Encoded:
    """Return the weights of a norm, to which mlx-lm added the one that transformers' model adds."""

    def values(read: Read, start: int, stop: int) -> Array:
        less: Array = to_float32(read(info.name, start, stop), info.dtype) - np.float32(1)
        return less

    about = f"{info.dtype} minus one"
    return Encoded(shape=info.shape, sources=(info.name,), about=about, values=values)
