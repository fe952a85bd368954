# SPDX-License-Identifier: Apache-2.0
"""Whole matrices of FP8 and MXFP4, and all formats of compressed-tensors and ModelOpt.

Formulas: transformers' `integrations/{finegrained_fp8,fbgemm_fp8,mxfp4}.py`, the OCP Microscaling specification, and
https://github.com/vllm-project/compressed-tensors `quantization/lifecycle/forward.py`,
https://github.com/NVIDIA/Model-Optimizer `torch/export/quant_utils.py` and `torch/quantization/qtensor`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qeff_zoo.validation.reference.formats.files import Decoded, Files, spread
from qeff_zoo.validation.reference.formats.integers import fields, group_size

_E8M0_BIAS = 127
_FP8 = ("F8_E4M3", "F8_E5M2")


def powers(exponents: Tensor) -> Tensor:
    """Return 2 to the power of E8M0 exponents, float32."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - _E8M0_BIAS)


def _scale(stored: Tensor) -> Tensor:
    return powers(stored) if stored.dtype == torch.uint8 else stored.float()


def e2m1(packed: Tensor) -> Tensor:
    """Return the values of pairs of 4-bit floats, the low one first, (..., 2 * bytes) float32."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    exponent, fraction = (codes >> 1 & 3).int(), (codes & 1).float()
    # Subnormals have the exponent of the least normals, and no leading one.
    size = torch.ldexp((exponent > 0) + fraction / 2, exponent.clamp(min=1) - 1)
    return torch.where(codes >= 8, -size, size)


def _in_blocks(blocks: Sequence[int] | None, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply by scales of blocks of the last two axes, which may be ragged; of rows, or of all.

    Args:
        blocks: Rows and columns of a block; None for as many as divide the matrix.
        weight: (..., rows, columns).
        scale: (..., blocks of rows, blocks of columns), or one number.
    """
    scale = _scale(scale)
    if scale.numel() == 1:
        return weight.float() * scale.reshape(())
    for axis in (-2, -1):
        size, count = weight.shape[axis], scale.shape[axis]
        if count not in (1, size):
            block = blocks[axis] if blocks else size // count
            if -(-size // block) != count:
                raise ValueError(f"{count} scales are not those of {size} in blocks of {block}.")
            scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
    return weight.float() * scale


def fp8(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find tensors of 8-bit floats and their scales: of blocks, of rows, or one."""
    decode = partial(_in_blocks, config.get("weight_block_size"))
    return {
        name: Decoded(files, {"weight": name, "scale": scale}, decode)
        for name, scale in _scaled(files)
    }


def mxfp8(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find tensors of 8-bit floats with an exponent for 32 columns."""
    return fp8(files, {"weight_block_size": config.get("weight_block_size") or (1, 32)})


def fbgemm_fp8(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find tensors of 8-bit floats with a scale for every output: rows, or of experts the last axis."""
    return {
        name: Decoded(files, {"weight": name, "scale": scale}, _by_outputs)
        for name, scale in _scaled(files)
    }


def _scaled(files: Files) -> list[tuple[str, str]]:
    """Return the names of 8-bit floats, and of their scales."""
    pairs = []
    for name in files:
        if files.dtype(name) in _FP8:
            scales = [f"{name}{end}" for end in ("_scale_inv", "_scale") if f"{name}{end}" in files]
            if scales:
                pairs.append((name, scales[0]))
    return pairs


def _by_outputs(weight: Tensor, scale: Tensor) -> Tensor:
    if weight.dim() == 3:  # experts, stored (experts, inputs, outputs)
        return weight.float() * scale.float().reshape(len(weight), 1, -1)
    return weight.float() * scale.float().reshape(-1, 1)


def mxfp4(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the experts of GPT-OSS: *_blocks (experts, outputs, groups, 16), *_scales without the last axis.

    The model holds them as (experts, inputs, outputs).
    """
    return {
        name.removesuffix("_blocks"): Decoded(
            files, {"blocks": name, "scales": f"{name.removesuffix('_blocks')}_scales"}, _mxfp4
        )
        for name in files
        if name.endswith("_blocks")
    }


def _mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    values = e2m1(blocks) * powers(scales)[..., None]
    return values.flatten(-2).transpose(1, 2).contiguous()


def compressed_tensors(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find what compressed-tensors packed or scaled; the tensors of a module show in which format it is."""
    if config.get("transform_config"):
        raise ValueError("The reference does not apply the transforms of compressed-tensors.")
    schemes = [group.get("weights") or {} for group in config.get("config_groups", {}).values()]
    blocks = next(
        (scheme["block_structure"] for scheme in schemes if scheme.get("block_structure")), None
    )
    sizes = [scheme.get("group_size") for scheme in schemes]
    decoded = {}
    names = ("weight_scale", "weight_zero_point", "weight_g_idx")
    for path in files.modules("weight_packed"):
        if files.dtype(f"{path}.weight_packed") == "U8":
            sources = files.parts(path, "weight_packed", "weight_scale", "weight_global_scale")
            decoded[f"{path}.weight"] = Decoded(files, sources, _packed_floats)
        else:
            sources = files.parts(path, "weight_packed", "weight_shape", *names)
            name, stacked, major = path.rpartition("_by_")  # experts of one tensor
            decode = partial(_turned if major == "columns" else _packed, sizes)
            decoded[name if stacked else f"{path}.weight"] = Decoded(files, sources, decode)
    for path in files.modules("weight_scale"):
        dtype = files.dtype(f"{path}.weight") if f"{path}.weight" in files else ""
        if dtype in _FP8:
            sources = {"weight": f"{path}.weight", "scale": f"{path}.weight_scale"}
            decoded[f"{path}.weight"] = Decoded(files, sources, partial(_in_blocks, blocks))
        elif dtype == "I8":
            sources = files.parts(path, "weight", *names)
            decoded[f"{path}.weight"] = Decoded(files, sources, partial(_integers, sizes))
    return decoded


def _packed(
    sizes: Sequence[int | None],
    weight_packed: Tensor,
    weight_shape: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None = None,
    weight_g_idx: Tensor | None = None,
) -> Tensor:
    *_, rows, columns = (int(length) for length in weight_shape)
    bits = weight_packed.shape[-1] * 32 // columns
    middle = 1 << bits - 1
    integers = fields(weight_packed, bits)[..., :columns] - middle
    zeros = None
    if weight_zero_point is not None:  # packed along the rows
        zeros = fields(weight_zero_point.mT, bits)[..., :rows].mT - middle
    return _integers(sizes, integers, weight_scale, zeros, weight_g_idx)


def _turned(sizes: Sequence[int | None], **stored: Tensor) -> Tensor:
    return _packed(sizes, **stored).mT


def _integers(
    sizes: Sequence[int | None],
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None = None,
    weight_g_idx: Tensor | None = None,
) -> Tensor:
    if weight_scale.numel() == 1:
        weight_scale = weight_scale.reshape(1, 1)
    columns = weight.shape[-1]
    group = group_size(sizes, columns, weight_scale.shape[-1])
    values = weight.float()
    if weight_zero_point is not None:
        zeros = weight_zero_point.float().reshape(weight_scale.shape)
        values = values - spread(zeros, columns, group, weight_g_idx)
    return values * spread(weight_scale.float(), columns, group, weight_g_idx)


def _packed_floats(
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_global_scale: Tensor | None = None,
) -> Tensor:
    scale = _scale(weight_scale)
    if weight_global_scale is not None:
        scale = scale / weight_global_scale.float()
    values = e2m1(weight_packed)
    return values * scale.repeat_interleave(values.shape[-1] // scale.shape[-1], -1)


def modelopt(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find what ModelOpt scaled: NAME beside NAME_scale, or a stack of experts beside NAME_weight_scale."""
    decoded = {}
    for scale in files:
        ends = [end for end in ("_weight_scale", "_scale") if scale.endswith(end)]
        name = next((n for end in ends if (n := scale.removesuffix(end)) in files), None)
        if name is None or not scale.endswith("weight_scale"):
            continue
        sources = {"weight": name, "weight_scale": scale}
        beside = {
            "weight_scale_2": f"{scale}_2",
            "pre_quant_scale": f"{name.removesuffix('.weight')}.pre_quant_scale",
        }
        sources |= {part: tensor for part, tensor in beside.items() if tensor in files}
        decoded[name] = Decoded(files, sources, _modelopt)
    return decoded


def _modelopt(
    weight: Tensor,
    weight_scale: Tensor,
    weight_scale_2: Tensor | None = None,
    pre_quant_scale: Tensor | None = None,
) -> Tensor:
    if weight.dtype == torch.uint8 and weight_scale.dtype == torch.float32:
        values = _two_rows(weight)
        scale = spread(weight_scale, weight.shape[1], weight.shape[1] // weight_scale.shape[1])
    elif weight.dtype == torch.uint8:
        values = e2m1(weight)
        scale = _scale(weight_scale)
        if weight_scale_2 is not None:
            second = weight_scale_2.float()
            scale = scale * (second.reshape(-1, 1, 1) if scale.dim() == 3 else second)
        scale = scale.repeat_interleave(values.shape[-1] // scale.shape[-1], -1)
    elif weight_scale.dtype == torch.uint8:
        values, scale = weight.float(), _scale(weight_scale).repeat_interleave(32, -1)
        scale = scale[..., : weight.shape[-1]]
    else:
        values, scale = weight.float(), _of_blocks(weight, weight_scale.float())
    scaled: Tensor = values * scale
    return scaled if pre_quant_scale is None else scaled * pre_quant_scale.float()


def _two_rows(packed: Tensor) -> Tensor:
    """Return int4 in two's complement, of which an octet has two rows, (2 * octets, columns)."""
    both = torch.stack([packed & 15, packed >> 4], 1).flatten(0, 1).float()
    return torch.where(both > 7, both - 16, both)


def _of_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """Return scales in a shape that multiplies: one, of matrices, of rows, or of blocks of 128 by 128."""
    if scale.numel() == 1:
        return scale.reshape(())
    if weight.dim() == 3 or scale.dim() == 1:
        return scale.reshape(-1, *[1] * (weight.dim() - 1))
    if scale.dim() == 4:
        scale = scale[:, 0, :, 0]
    if scale.shape[1] == 1 and scale.shape[0] == weight.shape[0]:
        return scale
    rows, columns = (torch.arange(length) // 128 for length in weight.shape)
    return scale[rows][:, columns]
