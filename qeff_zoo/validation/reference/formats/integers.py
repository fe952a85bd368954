# SPDX-License-Identifier: Apache-2.0
"""Whole matrices of AWQ, GPTQ, AutoRound, HQQ and BitNet, and of bitsandbytes and torchao in integers.

Formulas are those of the quantizers' own code: https://github.com/casper-hansen/AutoAWQ `WQLinear_GEMM`,
https://github.com/ModelCloud/GPTQModel `BaseQuantLinear`, https://github.com/intel/auto-round `QuantLinear`,
https://github.com/mobiusml/hqq `Quantizer.dequantize`, transformers' `integrations/bitnet.py`.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qeff_zoo.validation.reference.formats.files import Decoded, Files, plain, spread

_WORD = 32
#: Of eight neighbouring outputs, by how much AWQ's words are shifted.
_AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)


def fields(words: Tensor, bits: int) -> Tensor:
    """Return the fields of little-endian words along the last axis, (..., words * 32 // bits) int64.

    Args:
        words: int32.
        bits: Bits of a field, which may cross two words.
    """
    unsigned = words.long() & 0xFFFFFFFF
    pairs = unsigned | torch.nn.functional.pad(unsigned[..., 1:], (0, 1)) << _WORD
    starts = torch.arange(0, words.shape[-1] * _WORD - bits + 1, bits)
    return pairs[..., starts // _WORD] >> starts % _WORD & (1 << bits) - 1


def group_size(sizes: Sequence[int | None], columns: int, groups: int) -> int:
    """Return how many columns share a scale.

    Args:
        sizes: Group size of the config; if it has several, the one with the same number of groups.
        columns: Number of columns of the matrix.
        groups: Number of its scales.
    """
    fitting = [size for size in sizes if size and size > 0 and -(-columns // size) == groups]
    if not fitting and columns % groups:
        raise ValueError(
            f"{groups} scales are not those of {columns} columns in groups of {sizes}."
        )
    return fitting[0] if fitting else columns // groups


def awq(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the matrices of AWQ (gemm)."""
    sizes = [config.get("group_size", config.get("q_group_size"))]
    return {
        f"{path}.weight": Decoded(
            files, files.parts(path, "qweight", "qzeros", "scales"), partial(_awq, sizes)
        )
        for path in files.modules("qweight")
    }


def _awq(sizes: Sequence[int | None], qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    shifts = torch.tensor(_AWQ_SHIFTS, dtype=torch.int32)
    integers, zeros = ((words[..., None] >> shifts & 15).flatten(-2) for words in (qweight, qzeros))
    columns, groups = len(qweight), len(scales)
    index = torch.arange(columns) // group_size(sizes, columns, groups)
    return ((integers - zeros[index]).float() * scales.float()[index]).T.contiguous()


def gptq(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the matrices of GPTQ, each with its own number of bits."""
    version = str(config.get("checkpoint_format") or config.get("format") or "gptq")
    return _gptq_matrices(files, config, adds_one=version != "gptq_v2")


def auto_round(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the matrices of AutoRound, which packs as others do."""
    packing = str(config.get("packing_format") or config.get("backend") or "auto_round:auto_gptq")
    if "awq" in packing:
        return awq(files, config)
    adds_one = "gptq" in packing and "gptqmodel" not in packing
    return _gptq_matrices(files, config, adds_one=adds_one)


def _gptq_matrices(
    files: Files, config: Mapping[str, Any], *, adds_one: bool
) -> dict[str, Decoded]:
    names = ("qweight", "qzeros", "scales", "g_idx")
    layers = (config.get("extra_config") or {}).values()  # of AutoRound, what single layers have
    sizes = [one.get("group_size") for one in (config, *layers)]
    decode = partial(_gptq, sizes, adds_one)
    return {
        f"{path}.weight": Decoded(files, files.parts(path, *names), decode)
        for path in files.modules("qweight")
    }


def _gptq(
    sizes: Sequence[int | None],
    adds_one: bool,
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None = None,
) -> Tensor:
    groups, rows = scales.shape
    bits = qzeros.shape[1] * _WORD // rows
    if adds_one and _WORD % bits == 0:  # the writer subtracted from whole words, borrows and all
        ones = sum(1 << place for place in range(0, _WORD, bits))
        qzeros = (qzeros.long() + ones & 0xFFFFFFFF).int()
    zeros = fields(qzeros, bits)[:, :rows]
    if adds_one and _WORD % bits:
        zeros = zeros + 1 & (1 << bits) - 1
    integers = fields(qweight.T, bits)  # (rows, columns)
    columns = integers.shape[1]
    group = group_size(sizes, columns, groups)
    zero = spread(zeros.T, columns, group, g_idx)
    return (integers - zero).float() * spread(scales.T.float(), columns, group, g_idx)


def hqq(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the matrices of HQQ, each with its own packing."""
    names = ("W_q", "scale", "zero", "shape", "nbits", "axis", "group_size", "packing")
    return {
        f"{path}.weight": Decoded(files, files.parts(path, *names), _hqq)
        for path in files.modules("W_q")
    }


def _hqq(
    W_q: Tensor,  # noqa: N803 -- its name in the file
    scale: Tensor,
    zero: Tensor,
    shape: Tensor,
    nbits: Tensor,
    axis: Tensor,
    group_size: Tensor,
    packing: Tensor | None = None,
) -> Tensor:
    bits, lengths = int(nbits), [int(length) for length in shape]
    each = 10 if bits == 3 else 8 // bits
    if W_q.is_floating_point():  # stored as floats of the same bytes
        W_q = W_q.view(torch.int32 if bits == 3 else torch.uint8)  # noqa: N806
    shifts = range((each - 1) * bits, -1, -bits)  # the first rows are the highest bits
    integers = torch.cat([W_q.long() >> shift & (1 << bits) - 1 for shift in shifts])
    width = int(group_size) or lengths[1 - int(axis)]
    count = width if int(axis) == 0 else lengths[0] * lengths[1] // width
    return ((integers[:count].float() - zero.float()) * scale.float()).reshape(lengths)


def bitnet(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the ternary matrices of BitNet, four rows a byte.

    BitLinear divides by the scale, AutoBitLinear multiplies.
    """
    divides = config.get("linear_class", "bitlinear") == "bitlinear"
    return {
        f"{path}.weight": Decoded(
            files, files.parts(path, "weight", "weight_scale"), partial(_bitnet, divides)
        )
        for path in files.modules("weight_scale")
        if files.dtype(f"{path}.weight") == "U8"
    }


def _bitnet(divides: bool, weight: Tensor, weight_scale: Tensor) -> Tensor:
    ternary = torch.cat([weight >> shift & 3 for shift in (0, 2, 4, 6)]).float() - 1
    return ternary / weight_scale.float() if divides else ternary * weight_scale.float()


def bitsandbytes(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the matrices of bitsandbytes: per-channel int8, or tables of 16 floats in blocks."""
    eight = {
        f"{path}.weight": Decoded(files, files.parts(path, "weight", "SCB"), _bnb_int8)
        for path in files.modules("SCB")
    }
    four = {}
    for name in files:
        path, mark, _ = name.rpartition(".quant_state.bitsandbytes__")
        if mark:
            parts = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
            sources = {"weight": path, "state": name, **files.parts(path, *parts)}
            four[path] = Decoded(files, sources, _bnb_four)
    return eight | four


def _bnb_int8(weight: Tensor, SCB: Tensor) -> Tensor:  # noqa: N803 -- its name in the file
    return weight.float() * (SCB.float() / 127)[:, None]


def _bnb_four(
    weight: Tensor,
    state: Tensor,
    absmax: Tensor,
    quant_map: Tensor,
    nested_absmax: Tensor | None = None,
    nested_quant_map: Tensor | None = None,
) -> Tensor:
    settings = json.loads(bytes(state.tolist()))
    if nested_absmax is not None and nested_quant_map is not None:
        index = torch.arange(absmax.numel()) // settings["nested_blocksize"]
        absmax = nested_quant_map[absmax.long()] * nested_absmax[index] + settings["nested_offset"]
    octets = weight.view(torch.uint8).flatten()
    codes = torch.stack([octets >> 4, octets & 15], -1).flatten()  # the high one first
    values = quant_map[codes.long()]
    index = torch.arange(values.numel()) // settings["blocksize"]
    values = values * absmax.float()[index]
    count = torch.Size(settings["shape"]).numel()
    return values[:count].reshape(settings["shape"])


def torchao(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the tensors that torchao wrote as parts, with the kinds in the files' metadata."""
    decoded = {}
    for name, text in files.metadata.items():
        header = json.loads(text) if text.startswith("{") else {}
        kind = header.get("_type", "Tensor")
        if kind == "Tensor":
            continue
        if kind not in ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor"):
            raise ValueError(f"{name} is torchao's {kind}, which the reference cannot decode.")
        path, _, parameter = name.rpartition(".")
        parts = {
            part: f"{path}._{parameter}_{part}"
            for part in ("qdata", "scale", "zero_point")
            if f"{path}._{parameter}_{part}" in files
        }
        decoded[name] = Decoded(files, parts, partial(_torchao, header["_data"]["block_size"]))
    return decoded


def _torchao(
    block: list[int], qdata: Tensor, scale: Tensor, zero_point: Tensor | None = None
) -> Tensor:
    def expand(values: Tensor) -> Tensor:
        values = plain(values).reshape(
            [-(-n // b) for n, b in zip(qdata.shape, block, strict=True)]
        )
        for axis, (size, width) in enumerate(zip(qdata.shape, block, strict=True)):
            values = values.repeat_interleave(width, axis).narrow(axis, 0, size)
        return values.float()

    integers = qdata.float()
    if zero_point is not None:
        integers = integers - expand(zero_point)
    return integers * expand(scale)
