# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints for tests: genuine ones of a matrix, tensors as a method stores them, and tiny models."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkout import TESTS
from safetensors.numpy import load_file, save_file

from qeff_zoo.checkpoint.encoded import Stored
from qeff_zoo.checkpoint.safetensors_index import TensorReader, index_tensors

Array = np.ndarray[Any, Any]

#: Genuine checkpoints, cut down to a matrix; `make.py` there says how, `goldens.json` what the official decoders say.
GENUINE = TESTS / "fixtures" / "quantized"
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


# --- tiny models ----------------------------------------------------------------------------------
GROUP = 32


def quantize(
    source: Path, target: Path, how: str, *, plain: tuple[str, ...] = (), head: bool = False
) -> Path:
    """Write a checkpoint whose matrices of layers are quantized, rounded to the nearest.

    Args:
        source: Of floats, in one file.
        target: Made here.
        how: One of `WRITERS`.
        plain: Modules that stay as they are, by the ends of their paths.
        head: Whether the output matrix is quantized too.
    """
    shutil.copytree(source, target)
    config, write = WRITERS[how]
    random = np.random.default_rng(0)
    tensors = {}
    for name, value in load_file(source / "model.safetensors").items():
        path = name.rpartition(".")[0]
        router = path.endswith((".gate", ".router"))
        if (
            not (".layers." in name or (head and path == "lm_head"))
            or value.ndim != 2
            or router
            or path.endswith(plain or "!")
        ):
            tensors[name] = value
        else:
            made = write(value.astype(np.float32), random)
            # bitsandbytes' names go on after "weight"
            tensors |= {
                f"{path}.{end}" if end[0] != "." else name + end: entry
                for end, entry in made.items()
            }
    (target / "model.safetensors").unlink()  # a file that is mapped must not change
    save_file(
        {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()},
        target / "model.safetensors",
    )
    field = "quantization_config" if "quant_method" in config else "quantization"  # mlx's
    described = json.loads((source / "config.json").read_text()) | {field: config}
    (target / "config.json").write_text(json.dumps(described))
    return target


def random_mxfp4(source: Path, target: Path) -> Path:
    """Write a GPT-OSS whose experts are random MXFP4."""
    shutil.copytree(source, target)
    random = np.random.default_rng(0)
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = random.integers(0, 256, (*blocks, 16), np.uint8)
        tensors[f"{name}_scales"] = random.integers(120, 126, blocks, np.uint8)
    (target / "model.safetensors").unlink()
    save_file(tensors, target / "model.safetensors")
    described = json.loads((source / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4"}
    (target / "config.json").write_text(json.dumps(described))
    return target


def _affine(matrix: Array, bits: int) -> tuple[Array, Array, Array]:
    """Round groups of columns: integers (rows, columns), zero points and scales (rows, groups)."""
    groups = matrix.reshape(len(matrix), -1, GROUP)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = ((high - low) / ((1 << bits) - 1)).astype(np.float16)
    zeros = np.rint(-low / scales).clip(0, (1 << bits) - 1)
    integers = np.rint(groups / scales[..., None]) + zeros[..., None]
    integers = integers.clip(0, (1 << bits) - 1).astype(np.int64).reshape(matrix.shape)
    return integers, zeros.astype(np.int64), scales


def _awq(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    def words(fields: Array) -> Array:
        by_word = fields.T.reshape(fields.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return pack(by_word.reshape(fields.shape[1], -1), 4)

    integers, zeros, scales = _affine(matrix, 4)
    return {"qweight": words(integers), "qzeros": words(zeros), "scales": scales.T}


def _gptq(bits: int, *, ordered: bool = False, alike: bool = False) -> "_Write":
    """Return the function that quantizes a matrix; quantizers order matrices of one input alike, such as q, k and v."""

    def write(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
        columns = matrix.shape[1]
        random = np.random.default_rng(columns) if alike else random
        order = random.permutation(columns) if ordered else np.arange(columns)
        integers, zeros, scales = _affine(matrix[:, order], bits)
        index = np.empty(columns, np.int32)
        index[order] = np.arange(columns) // GROUP
        stored = np.empty_like(integers)
        stored[:, order] = integers
        return {
            "qweight": pack(stored, bits).T,
            "qzeros": pack(zeros.T, bits),
            "scales": scales.T,
            "g_idx": index,
        }

    return write


def _mlx(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    integers, zeros, scales = _affine(matrix, 4)
    biases = (-zeros * scales.astype(np.float32)).astype(np.float16)
    words = pack(integers, 4).view(np.uint32)
    return {"weight": words, "scales": scales, "biases": biases}


def _compressed(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    groups = matrix.reshape(len(matrix), -1, GROUP)
    scales = np.abs(groups).max(-1) / np.float32(7)
    integers = np.rint(groups / scales[..., None]).clip(-8, 7).reshape(matrix.shape) + 8
    return {
        "weight_packed": pack(integers.astype(np.int64), 4),
        "weight_scale": scales.astype(np.float32),
        "weight_shape": np.array(matrix.shape),
    }


def _by_rows(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    # As llm-compressor: the range has 255 steps, of which one is -128.
    scales = 2 * np.abs(matrix).max(-1, keepdims=True) / np.float32(255)
    integers = np.rint(matrix / scales).clip(-128, 127)
    return {"weight": integers.astype(np.int8), "weight_scale": scales.astype(np.float32)}


def _fp8(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    blocks = matrix.reshape(len(matrix) // 16, 16, -1, 16)
    scales = np.abs(blocks).max((1, 3)) / np.float32(448)
    floats = (blocks / scales[:, None, :, None]).reshape(matrix.shape)
    return {"weight": floats.astype(ml_dtypes.float8_e4m3fn), "weight_scale_inv": scales}


def _nf4(matrix: Array, random: np.random.Generator) -> dict[str, Array]:
    table = np.linspace(-1, 1, 16, dtype=np.float32)
    blocks = matrix.reshape(-1, 64)
    largest = np.abs(blocks).max(-1)
    codes = np.abs(blocks[..., None] / largest[:, None, None] - table).argmin(-1).reshape(-1, 2)
    state = {"quant_type": "nf4", "blocksize": 64, "shape": list(matrix.shape), "dtype": "float32"}
    return {
        "weight": (codes[:, :1] << 4 | codes[:, 1:]).astype(np.uint8),
        ".absmax": largest,
        ".quant_map": table,
        ".quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }


_Write = Callable[[Array, np.random.Generator], dict[str, Array]]
_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "checkpoint_format": "gptq_v2"}
#: What a configuration says, and what becomes of a matrix: tensors by the ends of their names.
WRITERS: Mapping[str, tuple[dict[str, Any], _Write]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP}, _awq),
    "gptq": ({**_GPTQ, "bits": 4}, _gptq(4)),
    "gptq-ordered": ({**_GPTQ, "bits": 4, "desc_act": True}, _gptq(4, ordered=True)),
    "gptq-ordered-alike": (
        {**_GPTQ, "bits": 4, "desc_act": True},
        _gptq(4, ordered=True, alike=True),
    ),
    "gptq-3": ({**_GPTQ, "bits": 3}, _gptq(3)),
    "mlx": ({"bits": 4, "group_size": GROUP, "mode": "affine"}, _mlx),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"a": {"weights": {"num_bits": 4, "group_size": GROUP}}},
        },
        _compressed,
    ),
    "w8a8": (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {
                "a": {
                    "weights": {"num_bits": 8, "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True},
                }
            },
        },
        _by_rows,
    ),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [16, 16]}, _fp8),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, _nf4),
}
