# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints as GPTQ stores them, of integers of several kinds; and tensors said to be integers."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from quantized import Array, pack
from safetensors.numpy import load_file, save_file

from qeff_zoo.checkpoint.encoded import Encoded, Integers, of_integers
from qeff_zoo.checkpoint.safetensors_index import TensorInfo

#: Reads some part of integers, of which it is enough to know that they have it.
READ: Any = object()
#: Ends of modules' names -> bits, and columns of a group.
Kinds = Mapping[str, tuple[int, int]]


def write(source: Path, folder: Path, kinds: Kinds, *, ordered: bool = False) -> Path:
    """Quantize some matrices of a checkpoint.

    Args:
        source: Of floats.
        folder: Made here.
        kinds: What to quantize, and how.
        ordered: Whether columns of a group lie apart.
    """
    shutil.copytree(source, folder)
    rng, made = np.random.default_rng(0), {}
    for name, value in load_file(folder / "model.safetensors").items():
        path = name.removesuffix(".weight")
        kind = next((kinds[end] for end in kinds if path.endswith(end)), None)
        if kind is None:
            made[name] = value
            continue
        index = np.arange(value.shape[1]) // kind[1]
        parts = _quantized(value, *kind, rng.permutation(index) if ordered else index)
        made |= {f"{path}.{part}": array for part, array in parts.items()}
    (folder / "model.safetensors").unlink()
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    bits, group = next(iter(kinds.values()))
    own = {f"+:.*{end}$": {"bits": one, "group_size": size} for end, (one, size) in kinds.items()}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq_v2",
        "bits": bits,
        "group_size": group,
        "sym": False,
        "desc_act": ordered,
        "dynamic": own,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def all_of(tensors: Mapping[str, TensorInfo], integers: Integers) -> dict[str, Encoded]:
    """Say of all matrices of layers that a checkpoint stores them as integers.

    Args:
        tensors: Of the checkpoint.
        integers: How.
    """
    found = {name: info.shape for name, info in tensors.items() if name.endswith("_proj.weight")}
    return {name: of_integers(shape, (name,), integers) for name, shape in found.items()}


def _quantized(matrix: Array, bits: int, size: int, index: Array) -> dict[str, Array]:
    """Quantize (rows, columns) to what is stored.

    Args:
        matrix: Of floats.
        bits: Of an integer.
        size: Columns of a group.
        index: The group of each column.
    """
    most, sort = (1 << bits) - 1, np.argsort(index, kind="stable")
    groups = matrix[:, sort].reshape(len(matrix), -1, size)
    lowest, highest = groups.min(-1).clip(max=0), groups.max(-1).clip(min=0)
    scales = ((highest - lowest) / most).astype(np.float16)
    wide = scales.astype(np.float32)
    zeros = np.rint(-lowest / wide).clip(0, most).astype(np.int64)
    steps = np.rint(matrix / wide[:, index]).astype(np.int64) + zeros[:, index]
    found = {
        "qweight": pack(steps.clip(0, most), bits).T,
        "qzeros": pack(zeros.T, bits),
        "scales": scales.T,
        "g_idx": index.astype(np.int32),
    }
    return {name: np.ascontiguousarray(array) for name, array in found.items()}
