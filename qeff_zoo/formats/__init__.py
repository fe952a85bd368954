# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints: which tensors of the float model they store in fewer bits, and what those bits are.

One module a method of `METHODS` has a function `encodings(stored)`. What it returns is read row by row, so that no more
than a piece of a matrix is ever decoded. Nothing here imports torch or transformers.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from qeff_zoo.errors import UnsupportedModelError

if TYPE_CHECKING:
    from qeff_zoo.formats.encoded import Encodings, Stored

#: `quant_method` of a checkpoint's `quantization_config` -> module of this package.
METHODS: Mapping[str, str] = MappingProxyType({"awq": "awq", "gguf": "gguf", "gptq": "gptq"})
#: Methods that are known and cannot be read, and what to do instead.
REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("aqlm", "vptq", "spqr", "higgs", "quark", "eetq", "exl2", "exl3", "marlin", "quip"),
        "Use the unquantized checkpoint; `--weights int4` quantizes it",
    )
)


def problem_of(method: str) -> str:
    """Say why checkpoints of a method cannot be read; nothing if they can.

    Args:
        method: `quant_method`.
    """
    if method in METHODS:
        return ""
    instead = REFUSED.get(method, "Use another checkpoint of the model")
    return f"quantized with {method!r}; {', '.join(METHODS)} can be read. {instead}."


def find(stored: "Stored") -> "Encodings":
    """Find what a checkpoint stores in fewer bits.

    Raises:
        CheckpointError: What it stores is not what its method says.
        UnsupportedModelError: The method, or a variant of it, cannot be read.
    """
    method = str(stored.config.get("quant_method"))
    if problem := problem_of(method):
        raise UnsupportedModelError(f"{stored.name!r} is {problem}")
    module = importlib.import_module(f"{__name__}.{METHODS[method]}")
    found: Encodings = module.encodings(stored)
    return found
