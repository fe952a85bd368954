# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints: formats of tensors in fewer bits than those of the float model.

The module of a method has a function `encodings(stored)`. Its result is read row by row, so that only a piece of a
matrix is decoded at a time. If some variants of a method are unsupported, a function `problem(config)` explains them,
and if it has small floats in place of integers, `floats(config)`, and `is_float8(config)` if a graph can have them.
Nothing here imports torch or transformers.
"""

import importlib
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import UnsupportedModelError

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.encoded import Encodings, Stored

# In one text: core names no recipe, and one is called as a method is.
_METHODS = "auto-round awq bitnet bitsandbytes compressed-tensors fp8 gguf gptq hqq mlx modelopt mxfp4 torchao"
_OTHERS = (
    "aqlm eetq exl2 exl3 fouroversix fp_quant gemma higgs marlin "
    "metal nvfp4 quark quip quanto sinq spqr vptq"
)
#: Module of this package for each `quant_method` of a checkpoint's `quantization_config`.
METHODS: Mapping[str, str] = MappingProxyType(
    {
        **{method: method.replace("-", "_") for method in _METHODS.split()},
        **dict.fromkeys(("fbgemm_fp8", "mxfp8"), "fp8"),
        **dict.fromkeys(("modelopt_fp4", "modelopt_mxfp8"), "modelopt"),
    }
)
#: Data types that store no unquantized weights; tables of int64 are no weights.
_SMALL = ("I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4")
#: Known unsupported methods, and advice for each.
REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(_OTHERS.split(), "Use the unquantized checkpoint; `--weights int4` quantizes it")
)


class SmallFloats(Enum):
    """Small float formats without kernels for products; the values are their names in messages."""

    FLOAT8 = "8-bit floats"
    FP4 = "fp4"
    NF4 = "nf4"


def methods_of() -> list[str]:
    """Return the supported values of `quant_method`, with "none" for unquantized checkpoints."""
    return ["none", *METHODS]


def problem_of(config: Mapping[str, Any]) -> str:
    """Explain why a quantized checkpoint is unsupported; empty if it is supported.

    Args:
        config: `quantization_config`.
    """
    method = str(config.get("quant_method"))
    if method not in METHODS:
        instead = REFUSED.get(method, "Use another checkpoint of the model")
        return f"quantized with {method!r}; {', '.join(METHODS)} can be read. {instead}."
    problem = getattr(_module(method), "problem", None)
    if problem and (found := problem(config)):
        return f"{found}. Use the unquantized checkpoint, or another of the model."
    return ""


def floats_of(config: Mapping[str, Any]) -> SmallFloats | None:
    """Return the small float format of a checkpoint's matrices; None if they are integers or unquantized.

    Args:
        config: `quantization_config`; empty if there is none.
    """
    if not config:
        return None
    floats = getattr(_module(str(config["quant_method"])), "floats", None)
    found: SmallFloats | None = floats(config) if floats else None
    return found


def has_float8(config: Mapping[str, Any]) -> bool:
    """Return whether some matrices of a checkpoint are 8-bit floats.

    Args:
        config: `quantization_config`; empty if there is none.
    """
    return floats_of(config) is SmallFloats.FLOAT8


def is_float8(config: Mapping[str, Any]) -> bool:
    """Return whether all quantized matrices of a checkpoint are 8-bit floats, with scales that are floats too.

    Args:
        config: `quantization_config`; empty if there is none.
    """
    if not config:
        return False
    is_float8 = getattr(_module(str(config["quant_method"])), "is_float8", None)
    return bool(is_float8 and is_float8(config))


#: Fields of `quantization_config` with the bits of a value, in itself or in a part of it.
_BITS = ("bits", "w_bit", "num_bits", "weight_bits")


def bits_of(config: Mapping[str, Any]) -> int | None:
    """Return the fewest bits of a matrix's values; None if the config does not set them.

    Args:
        config: `quantization_config`.
    """
    floats = floats_of(config)
    if floats is not None:
        return 8 if floats is SmallFloats.FLOAT8 else 4
    if config.get("load_in_8bit"):
        return 8
    return min(_bits_in(config), default=None)


def _bits_in(part: Any) -> Iterator[int]:
    if not isinstance(part, Mapping):
        return
    for name, value in part.items():
        if name in _BITS and isinstance(value, int):
            yield value
        elif name != "input_activations":
            yield from _bits_in(value)


def rows_of(config: Mapping[str, Any]) -> Mapping[str, int | None]:
    """Return the axis of a matrix's rows in each stored tensor, by the end of its name; empty if rows are not whole.

    Args:
        config: `quantization_config`.
    """
    axes: Mapping[str, int | None] = getattr(_module(str(config["quant_method"])), "ROWS", {})
    return axes


def halves_experts(config: Mapping[str, Any]) -> bool:
    """Return whether an expert's `gate_proj` and `up_proj` are halves of a matrix in which their rows alternate.

    GPTQModel cuts every matrix in two, others take the alternating rows; the names are the same.

    Args:
        config: `quantization_config`; empty if there is none.
    """
    meta = config.get("meta")
    written_by = meta.get("quantizer") if isinstance(meta, Mapping) else None
    return "gptqmodel" in str(written_by)


def _module(method: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{METHODS[method]}")


def find(stored: "Stored") -> "Encodings":
    """Return the quantized tensors of a checkpoint.

    Raises:
        CheckpointError: The tensors do not match the method.
        UnsupportedModelError: The method, or a variant of it, is unsupported.
    """
    if problem := problem_of(stored.config):
        raise UnsupportedModelError(f"{stored.name!r} is {problem}")
    found: Encodings = _module(str(stored.config["quant_method"])).encodings(stored)
    if not (found.encoded or found.values):
        if strange := next(
            (tensor for tensor in stored.tensors.values() if tensor.dtype in _SMALL), None
        ):
            raise stored.wrong(
                f"no tensor is stored so; {strange.name!r} is {strange.dtype}", "some"
            )
        method = stored.config["quant_method"]
        warnings.warn(
            f"{stored.name!r} has a `quantization_config` of {method!r}, but all its weights are floats, which are "
            "used as they are. Give --weights to quantize them.",
            stacklevel=2,
        )
    return found
