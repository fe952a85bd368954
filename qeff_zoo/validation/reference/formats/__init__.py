# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints, decoded for the reference: whole tensors in float32, under the names of the float model.

Only the reference process imports this. It shares no code with `qeff_zoo.checkpoint.formats`, by which packages are
built: what both read alike is read right.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from qeff_zoo.validation.reference.formats.files import Decoded, Files, plain
from qeff_zoo.validation.reference.formats.mlx_files import mlx

from . import integers, small_floats

_FINDERS = (
    *(integers.auto_round, integers.awq, integers.bitnet, integers.bitsandbytes, integers.gptq),
    *(
        integers.hqq,
        mlx,
        integers.torchao,
        small_floats.compressed_tensors,
        small_floats.fbgemm_fp8,
    ),
    *(small_floats.fp8, small_floats.modelopt, small_floats.mxfp4, small_floats.mxfp8),
)
#: `quant_method`, with "-" for "_" -> what finds its tensors.
METHODS: Mapping[str, Callable[[Files, Mapping[str, Any]], dict[str, Decoded]]] = MappingProxyType(
    {finder.__name__.replace("_", "-"): finder for finder in _FINDERS}
    | dict.fromkeys(("modelopt-fp4", "modelopt-mxfp8"), small_floats.modelopt)
)
#: Algorithms of ModelOpt that round no activations.
_OF_WEIGHTS = ("FP8_PB_WO", "MXFP4", "W4A16", "W4A16_AWQ", "W4A16_NVFP4", "W8A16")
#: Tensors beside quantized weights: of activations, which the reference does not round, and of loaders.
_BESIDE = (
    *(
        "activation_scale",
        "input_scale",
        "input_scale_ub",
        "input_zero_point",
        "input_global_scale",
    ),
    *(
        "k_scale",
        "v_scale",
        "q_scale",
        "k_bias",
        "v_bias",
        "output_scale",
        "output_zero_point",
        "weight_format",
    ),
    *("weight_shape", "compute_dtype", "encoded_state_dict", "offload_meta"),
    *("stores_quant_config", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero"),
    *("channel_wise", "optimize", "round_zero"),
)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of a quantized checkpoint, as `from_pretrained` takes a `state_dict`.

    Args:
        tensors: Tensors by name in the float checkpoint; each is decoded when transformers reads it.
        orders: Column order of weights that were sorted for quantization, (columns,) int64.
        halved: Whether experts' gates and ups are halves of matrices in which the model may alternate them.
    """

    tensors: Mapping[str, Decoded]
    orders: Mapping[str, Tensor] = field(default_factory=dict)
    halved: bool = False


def open_weights(folder: Path, config: Mapping[str, Any]) -> Weights:
    """Open the weights of a quantized checkpoint.

    Args:
        folder: Folder of the checkpoint.
        config: Content of `quantization_config`.

    Raises:
        ValueError: The method is not known here.
    """
    method, finder = str(config.get("quant_method")), _finder(config)
    if finder is None:
        raise ValueError(f"The reference cannot decode {method!r}; it knows {', '.join(METHODS)}.")
    files = Files(folder)
    decoded = finder(files, config)
    parts = {name for value in decoded.values() for name in value.sources.values()}
    rest = {
        name: Decoded(files, {"value": name}, plain)
        for name in files
        if name not in parts and name.rpartition(".")[2] not in _BESIDE
    }
    written_by = (config.get("meta") or {}).get("quantizer", "")  # GPTQModel cuts matrices in two
    return Weights(
        tensors=rest | decoded,
        orders=_orders(files, decoded),
        halved="gptqmodel" in str(written_by),
    )


def plain_tensors(folder: Path) -> dict[str, Decoded]:
    """Open the tensors of a checkpoint of floats.

    Args:
        folder: The checkpoint.
    """
    files = Files(folder)
    return {name: Decoded(files, {"value": name}, plain) for name in files}


def _finder(
    config: Mapping[str, Any],
) -> Callable[[Files, Mapping[str, Any]], dict[str, Decoded]] | None:
    method = str(config.get("quant_method"))
    return METHODS.get(method.removeprefix("intel/").replace("_", "-"))


def left_out(config: Mapping[str, Any]) -> list[str]:
    """Return a checkpoint's further roundings, in words, which the reference does not apply.

    Args:
        config: `quantization_config`.
    """
    groups = (config.get("config_groups") or {}).values()
    always = (small_floats.fp8, small_floats.mxfp8, small_floats.fbgemm_fp8, integers.bitnet)
    rounded = _finder(config) in always or any(group.get("input_activations") for group in groups)
    rounded |= str(config.get("quant_algo") or "W4A16").upper() not in _OF_WEIGHTS
    caches = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    roundings = {"activations": rounded, "keys and values": bool(caches)}
    return [name for name, is_set in roundings.items() if is_set]


def _orders(files: Files, decoded: Mapping[str, Decoded]) -> dict[str, Tensor]:
    """Sort columns by their group where they are not."""
    orders = {}
    for name, one in decoded.items():
        stored = one.sources.get("g_idx") or one.sources.get("weight_g_idx")
        if stored is not None:
            order = torch.argsort(files[stored], stable=True)
            if not torch.equal(order, torch.arange(len(order))):
                orders[name] = order
    return orders
