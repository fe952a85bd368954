# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a few kilobytes, as files in memory or in a folder, written by safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

Array = np.ndarray[Any, Any]

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8}
COMPANIONS: Mapping[str, bytes] = {
    "config.json": json.dumps(CONFIG).encode(),
    "generation_config.json": b'{"eos_token_id": [1, 2]}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "README.md": b"---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n",
    "LICENSE": b"Apache License",
}


def tensors(seed: int = 0) -> dict[str, Array]:
    """Make one tensor of every dtype that carries weights, and the odd shapes."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((24, 8)).astype(np.float32)
    return {
        "embed.weight": values.astype(ml_dtypes.bfloat16),
        "half.weight": values[:7].astype(np.float16),
        "norm.weight": values[0],
        "quantized.weight": values.astype(ml_dtypes.float8_e4m3fn),
        "scale": np.array(0.5, np.float32),
        "empty": np.zeros((0, 4), np.float16),
        "ids": np.arange(5, dtype=np.int64),
        "mask": np.array([True, False, True]),
    }


def weights(shards: int = 1, seed: int = 0) -> dict[str, bytes]:
    """Write the tensors to so many files, with an index if there are several."""
    arrays = tensors(seed)
    if shards == 1:
        return {"model.safetensors": save(arrays)}
    names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    place = {key: names[n % shards] for n, key in enumerate(arrays)}
    files = {
        name: save({key: arrays[key] for key in arrays if place[key] == name}) for name in names
    }
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": place})
    return {**files, "model.safetensors.index.json": index.encode()}


def files(shards: int = 1, seed: int = 0) -> dict[str, bytes]:
    """Make a whole checkpoint: bytes by relative path."""
    return {**COMPANIONS, **weights(shards, seed)}


def write(folder: Path, content: Mapping[str, bytes]) -> Path:
    """Put files into a folder."""
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def plain_class(folder: Path) -> None:
    """Say that a tokenizer.json is to be taken as it is: transformers has classes of its own for most models."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_bytes()) if path.is_file() else {}
    path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings}))
