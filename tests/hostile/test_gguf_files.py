# SPDX-License-Identifier: Apache-2.0
"""Whatever a GGUF file claims, reading it gives tensors or a ZooError, quickly, and takes no memory for claims."""

import random
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from fuzzing import example_count

from qeff_zoo.checkpoint.gguf import names as gguf_names
from qeff_zoo.checkpoint.gguf.index import TYPES, read_gguf, read_shards
from qeff_zoo.checkpoint.safetensors_index import TensorReader
from qeff_zoo.errors import CheckpointError, UnsupportedModelError, ZooError

CONFIG = {"model_type": "llama", "num_hidden_layers": 1}


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack("<I", len(shape)) + b"".join(map(number, shape))
    return text(name) + axes + struct.pack("<I", kind) + number(offset)


def file(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
    data: int = 64,
) -> bytes:
    pairs, tensors = pairs or [], tensors or []
    n_tensors, n_pairs = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<I", version) + number(n_tensors) + number(n_pairs)
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % 32 + data)


ONE = tensor(b"w", (8,))
NESTED = struct.pack("<I", 9) + number(1)
DAMAGED = {
    "nothing": (b"", "it is empty"),
    "other": (b"PK\3\4" + bytes(60), "does not begin"),
    "truncated": (file([], [ONE])[:40], "its header needs"),
    "no data": (file([], [ONE], data=0), "ends at byte"),
    "pairs": (file(counts=(0, 1 << 60)), "entries are announced at byte 24 of 96"),
    "tensors": (file(counts=(1 << 40, 0)), "entries are announced"),
    "key": (file([number(1 << 50) + b"k"]), "bytes of a text are announced"),
    "long key": (file([pair(b"k" * 2000, 4, bytes(4))]), "a name has 2,000 bytes"),
    "key no text": (file([pair(b"\xff", 4, bytes(4))]), "not UTF-8"),
    "value": (file([pair(b"k", 8, number(1 << 62))]), "bytes of a text are announced"),
    "value's type": (file([pair(b"k", 77, bytes(8))]), "type of a metadata value is 77"),
    "array": (file([pair(b"k", 9, struct.pack("<I", 6) + number(1 << 61))]), "are announced"),
    "texts": (file([pair(b"k", 9, struct.pack("<I", 8) + number(1 << 61))]), "are announced"),
    "text in array": (
        file([pair(b"k", 9, struct.pack("<I", 8) + number(2) + text(b"a") + number(1 << 63))]),
        "a text ends at byte",
    ),
    "deep": (file([pair(b"k", 9, NESTED * 5000)]), "arrays within"),
    "key twice": (file([pair(b"k", 4, bytes(4))] * 2), "'k' occurs twice"),
    "alignment 0": (file([pair(b"general.alignment", 4, bytes(4))]), "alignment is 0"),
    "alignment 48": (file([pair(b"general.alignment", 4, b"0\0\0\0")]), "alignment is 48"),
    "alignment text": (file([pair(b"general.alignment", 8, text(b"32"))]), "alignment is '32'"),
    "tensor twice": (file([], [ONE, tensor(b"w", (8,), 0, 32)]), "one name"),
    "overlap": (file([], [ONE, tensor(b"v", (8,))]), "inside another"),
    "unaligned": (file([], [tensor(b"w", (8,), 0, 8)]), "unaligned"),
    "far": (file([], [tensor(b"w", (8,), 0, 1 << 62)]), "ends at byte"),
    "no axes": (file([], [tensor(b"w", ())]), "has 0 axes"),
    "axes": (file([], [tensor(b"w", (1,) * 5)]), "has 5 axes"),
    "many axes": (
        file([], [text(b"w") + struct.pack("<I", 1 << 31) + bytes(64)]),
        "has 2,147,483,648 axes",
    ),
    "empty": (file([], [tensor(b"w", (0, 8))]), "has the shape"),
    "enormous": (file([], [tensor(b"w", (1 << 63, 1 << 63, 1 << 63))]), "has the shape"),
    "ragged blocks": (file([], [tensor(b"w", (33, 2), 2)]), "has the shape"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_header_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason in str(caught.value).replace("2147483648", "2,147,483,648")
    assert len(str(caught.value)) < 4000
    assert peak < 4_000_000


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_are_refused_by_name(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file(version=version))
    with pytest.raises(UnsupportedModelError, match="big-endian" if version > 9 else "version"):
        read_gguf(path)


_NAMES = {int(one): one.name for one in gguf.GGMLQuantizationType}


@pytest.mark.parametrize("kind", [4, 99, *sorted(_NAMES.keys() - TYPES.keys())])
def test_unknown_types_are_refused_by_name(tmp_path: Path, kind: int) -> None:
    path, name = tmp_path / "model.gguf", _NAMES.get(kind, "unknown")
    path.write_bytes(file([], [tensor(b"w", (32,), kind)]))
    with pytest.raises(UnsupportedModelError, match=rf"Tensor 'w' .* has the type {kind} \({name}"):
        read_gguf(path)


def whole(path: Path) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "def"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_string("general.name", "m")
    for name in ("token_embd", "blk.0.attn_q", "blk.0.ffn_down"):
        values = np.arange(64 * 4, dtype=np.float32).reshape(4, 64)
        kind = gguf.GGMLQuantizationType.Q4_0
        raw = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Change a few bytes, cut, or repeat a piece of the header."""
    made = bytearray(content)
    header = len(content) - 600
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(header)
        match chance.randrange(5):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at] = chance.randrange(256)
            case 2:
                wide = chance.choice((0, 1, (1 << 63) - 1, (1 << 64) - 1, 1 << 32, 2**24))
                made[at : at + 8] = number(wide)
            case 3:
                made[at : at + 4] = struct.pack("<I", chance.choice((0, 8, 9, 0xFFFFFFFF)))
            case _:
                size = chance.randrange(40)
                made[at : at + chance.choice((0, size))] = made[at // 2 : at // 2 + size]
    return bytes(made[: chance.choice((len(made), len(made), chance.randrange(len(made) + 1)))])


def test_mutated_files_give_tensors_or_a_zoo_error(tmp_path: Path) -> None:
    content = whole(tmp_path / "whole.gguf")
    path, chance = tmp_path / "model.gguf", random.Random(7)
    read, refusals, cases = 0, [], example_count(5000)
    begun = time.process_time()
    for _ in range(cases):
        path.write_bytes(mutated(content, chance))
        try:
            header = read_shards([path])
            gguf_names.places_of("m", CONFIG, header.metadata, header.tensors)
            reader = TensorReader(header.tensors)
            for name in header.tensors:
                assert reader.read(name).size
            reader.close()
            read += 1
        except ZooError as error:
            refusals.append(len(str(error)))
    assert time.process_time() - begun < 60
    assert read > cases / 50
    assert len(refusals) > cases / 5
    assert max(refusals) < 8000
