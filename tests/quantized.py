# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints for tests: genuine ones of one matrix, and tensors to be read as a method stores them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from qeff_zoo.checkpoint.safetensors_index import TensorReader, index_tensors
from qeff_zoo.formats.encoded import Stored

Array = np.ndarray[Any, Any]

#: Genuine checkpoints, cut down to a matrix; `make.py` there says how, `goldens.json` what the official decoders say.
GENUINE = Path(__file__).parent / "fixtures" / "quantized"
GOLDENS: dict[str, dict[str, Any]] = json.loads((GENUINE / "goldens.json").read_bytes())
MATRIX = "model.layers.0.self_attn.k_proj.weight"


def stored(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
) -> Stored:
    """Write tensors to a file, and show them as those of a quantized checkpoint."""
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)  # a file that is mapped must not change
    save_file(
        {name: np.asarray(array, order="C") for name, array in tensors.items()},
        path,
        dict(metadata or {}),
    )
    infos = index_tensors([path])
    return Stored(name="tiny", config=config, tensors=infos, read=TensorReader(infos).read)


def pack(integers: Array, bits: int) -> Array:
    """Pack unsigned integers along the last axis into little-endian words of 32 bits, without gaps."""
    ones = (integers[..., None] >> np.arange(bits)) & 1
    ones = ones.reshape(*integers.shape[:-1], -1)
    ones = np.pad(ones, [(0, 0)] * (ones.ndim - 1) + [(0, -ones.shape[-1] % 32)])
    words: Array = (
        ones.reshape(*ones.shape[:-1], -1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
    ).sum(-1)
    return words.astype(np.uint32).view(np.int32)


def spread(by_block: Array, shape: tuple[int, ...], tall: int, wide: int) -> Array:
    """Repeat what blocks share until it has a shape."""
    *_, rows, columns = shape
    row, column = np.arange(rows) // tall, np.arange(columns) // wide
    found: Array = by_block[..., row, :][..., column]
    return found


def bfloat16(values: Array) -> Array:
    rounded: Array = values.astype(ml_dtypes.bfloat16)
    return rounded
