# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints: which tensors of the float model they store in fewer bits, and what those bits are.

The module of a method has a function `encodings(stored)`. What it returns is read row by row, so that no more than a
piece of a matrix is ever decoded. Where some of a method cannot be read, a function `problem(config)` says so. Nothing
here imports torch or transformers.
"""

import importlib
from collections.abc import Collection, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import UnsupportedModelError

if TYPE_CHECKING:
    from qeff_zoo.formats.encoded import Encodings, Stored

#: `quant_method` of a checkpoint's `quantization_config` -> module of this package.
METHODS: Mapping[str, str] = MappingProxyType(
    {
        "auto-round": "auto_round",
        "awq": "awq",
        "bitnet": "bitnet",
        "bitsandbytes": "bitsandbytes",
        "compressed-tensors": "compressed_tensors",
        "fbgemm_fp8": "fp8",
        "fp8": "fp8",
        "gptq": "gptq",
        "hqq": "hqq",
        "mxfp4": "mxfp4",
        "torchao": "torchao",
    }
)
#: Methods that are known and cannot be read, and what to do instead.
REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "aqlm",
            "eetq",
            "exl2",
            "exl3",
            "fp_quant",
            "higgs",
            "marlin",
            "quark",
            "quip",
            "quanto",
            "spqr",
            "vptq",
        ),
        "Use the unquantized checkpoint; `--weights int4` quantizes it",
    )
)


def methods_of(exceptions: Collection[str]) -> list[str]:
    """Return the values of `quant_method` that work, "none" for checkpoints of floats among them.

    Args:
        exceptions: Of an architecture.
    """
    return ["none", *(method for method in METHODS if method not in exceptions)]


def problem_of(
    method: str, exceptions: Collection[str] = (), config: Mapping[str, Any] | None = None
) -> str:
    """Say why checkpoints of a method cannot be read; nothing if they can.

    Args:
        method: `quant_method`.
        exceptions: Of an architecture.
        config: `quantization_config`, which says the variant; None to say nothing of it.
    """
    if method in exceptions:
        return f"quantized with {method!r}, which does not work here. Use another checkpoint of the model."
    if method not in methods_of(exceptions):
        instead = REFUSED.get(method, "Use another checkpoint of the model")
        return f"quantized with {method!r}; {', '.join(METHODS)} can be read. {instead}."
    problem = None
    if config is not None:
        problem = getattr(_module(method), "problem", None)
    if problem and (found := problem(config)):
        return f"{found}. Use the unquantized checkpoint, or another of the model."
    return ""


def _module(method: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{METHODS[method]}")


def find(stored: "Stored") -> "Encodings":
    """Find what a checkpoint stores in fewer bits.

    Raises:
        CheckpointError: What it stores is not what its method says.
        UnsupportedModelError: The method, or a variant of it, cannot be read.
    """
    method = str(stored.config.get("quant_method"))
    if problem := problem_of(method, config=stored.config):
        raise UnsupportedModelError(f"{stored.name!r} is {problem}")
    found: Encodings = _module(method).encodings(stored)
    return found
