# SPDX-License-Identifier: Apache-2.0
"""Llama checkpoints of random weights for benchmarks: bf16, sharded safetensors, with a tokenizer of 256 bytes.

Made once, streamed to disk in little memory, the same bytes for the same seed; transformers loads them.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

_SHARD_BYTES = 1 << 30
_CHUNK = 1 << 22  # values drawn at once


@dataclass(frozen=True)
class Size:
    """The shape of a Llama.

    Args:
        hidden: Width.
        intermediate: Width of the MLP.
        layers: Number of layers.
        heads: Query heads.
        kv_heads: Key and value heads.
        vocabulary: Number of tokens.
        tied: Whether the output matrix is the embedding.
        key_value_layers: Of SwiftKV, layers with keys and values of their own; None for plain Llama.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True
    key_value_layers: int | None = None


SIZES = {
    "160m": Size(768, 3072, 12, 12, 4, 32_000, tied=False),
    "1.2b": Size(2048, 8192, 16, 32, 8, 128_256),
    "70b": Size(8192, 28_672, 80, 64, 8, 128_256, tied=False),
    "405b": Size(16_384, 53_248, 126, 128, 8, 128_256, tied=False),
}


def config_of(size: Size) -> dict[str, Any]:
    """Return the config.json of a size."""
    swiftkv = {
        "architectures": ["LlamaSwiftKVForCausalLM"],
        "model_type": "llama_swiftkv",
        "num_key_value_layers": size.key_value_layers,
        "key_value_group_size": 1,
        "swiftkv": True,
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": size.tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        **(swiftkv if size.key_value_layers else {}),
    }


def make(folder: Path, size: Size, seed: int) -> Path:
    """Write a checkpoint, unless it is there.

    Args:
        folder: Where; complete whenever it exists.
        size: Of the model.
        seed: Of its weights.

    Returns:
        The folder.
    """
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    shards = list(_shards(size))
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        with (unfinished / name).open("wb") as file:
            _write_shard(file, tensors, [seed, number])
        weight_map |= dict.fromkeys(tensors, name)
    total = sum(2 * int(np.prod(shape)) for tensors in shards for shape in tensors.values())
    _write_json(
        unfinished / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )
    _write_json(unfinished / "config.json", config_of(size))
    _write_json(unfinished / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    write_tokenizer(unfinished)
    unfinished.rename(folder)
    return folder


def shapes_of(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of every tensor of a size."""
    kv = size.hidden // size.heads * size.kv_heads
    yield "model.embed_tokens.weight", (size.vocabulary, size.hidden)
    for index in range(size.layers):
        layer = f"model.layers.{index}"
        for name, rows in {"q": size.hidden, "k": kv, "v": kv, "o": size.hidden}.items():
            later = size.key_value_layers is not None and index >= size.key_value_layers
            ending = "_swiftkv" if later and name != "o" else ""
            yield f"{layer}.self_attn.{name}_proj{ending}.weight", (rows, size.hidden)
        for name in ("gate", "up"):
            yield f"{layer}.mlp.{name}_proj.weight", (size.intermediate, size.hidden)
        yield f"{layer}.mlp.down_proj.weight", (size.hidden, size.intermediate)
        for name in ("input", "post_attention"):
            yield f"{layer}.{name}_layernorm.weight", (size.hidden,)
    yield "model.norm.weight", (size.hidden,)
    if size.key_value_layers:
        yield "model.norm_swiftkv.weight", (size.hidden,)
    if not size.tied:
        yield "lm_head.weight", (size.vocabulary, size.hidden)


def _shards(size: Size) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    taken = 0
    for name, shape in shapes_of(size):
        nbytes = 2 * int(np.prod(shape))
        if shard and taken + nbytes > _SHARD_BYTES:
            yield shard
            shard, taken = {}, 0
        shard[name] = shape
        taken += nbytes
    yield shard


def _write_shard(file: IO[bytes], tensors: dict[str, tuple[int, ...]], seed: list[int]) -> None:
    header, offset = {}, 0
    for name, shape in tensors.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    random = np.random.default_rng(seed)
    for shape in tensors.values():
        left = int(np.prod(shape))
        mean, deviation = (1.0, 0.1) if len(shape) == 1 else (0.0, 0.02)
        while left:
            values = random.standard_normal(min(left, _CHUNK), np.float32) * np.float32(deviation)
            values += np.float32(mean)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
            left -= len(values)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the bytes, after a begin and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(symbols[:2])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"},
    )
