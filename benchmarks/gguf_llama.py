# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of `random_llama.py` as a GGUF file for llama.cpp, quantized by llama.cpp itself.

    python gguf_llama.py CHECKPOINT FILE [q4_0|q4_k_m|q4_0_pure]

For a Python with `gguf` and `llama-cpp-python`. llama.cpp's own converter knows no tokenizer of 256 bytes; this file
has none at all. As llama.cpp does by default, the output matrix is stored as q6_K; not so in `q4_0_pure`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_KINDS = {"q4_0": 2, "q4_k_m": 15, "q4_0_pure": 2}  # of llama_ftype
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_MODEL = {"embed_tokens": "token_embd", "norm": "output_norm"}


def main(checkpoint: Path, target: Path, kind: str = "q4_0") -> None:
    """Write the file, complete whenever it exists."""
    import gguf
    import llama_cpp

    whole, unfinished = target.with_suffix(".bf16"), target.with_suffix(".unfinished")
    config = json.loads((checkpoint / "config.json").read_bytes())
    writer = gguf.GGUFWriter(whole, "llama")
    write_config(writer, config)
    for name, values in tensors(checkpoint):
        if values.ndim == 1:
            writer.add_tensor(renamed(name), _as_float32(values))
        else:
            ordered = _permuted(values, name, config)
            bytes_ = ordered.view(np.uint8).reshape(len(ordered), -1)
            writer.add_tensor(renamed(name), bytes_, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = _KINDS[kind]
    parameters.pure = kind.endswith("_pure")
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(unfinished).encode(), parameters):
        raise RuntimeError(f"llama.cpp could not quantize {whole}.")
    whole.unlink()
    unfinished.rename(target)


def write_q4_0(checkpoint: Path, target: Path) -> None:
    """Write the file with all matrices in q4_0, and the texts of the tokens, without llama.cpp.

    Args:
        checkpoint: With a tokenizer.json that has a text for every token.
        target: Path of the file, complete whenever it exists.
    """
    import gguf

    unfinished = target.with_suffix(".unfinished")
    config = json.loads((checkpoint / "config.json").read_bytes())
    known = json.loads((checkpoint / "tokenizer.json").read_bytes())["model"]["vocab"]
    writer = gguf.GGUFWriter(unfinished, "llama")
    write_config(writer, config, tokenizer="gpt2")
    special = {config["bos_token_id"], config["eos_token_id"]}
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(known, key=known.get))
    writer.add_token_types([kinds[number in special] for number in range(len(known))])
    writer.add_token_merges(["a b"])  # an empty list cannot be written
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, values in tensors(checkpoint):
        if values.ndim == 1:
            writer.add_tensor(renamed(name), _as_float32(values))
            continue
        kind = gguf.GGMLQuantizationType.Q4_0
        matrix = gguf.quantize(_as_float32(_permuted(values, name, config)), kind)
        writer.add_tensor(renamed(name), matrix, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


def write_config(writer: Any, config: Mapping[str, Any], *, tokenizer: str = "none") -> None:
    """Write the metadata that say what a config.json does."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model(tokenizer)


def tensors(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """Yield names and bf16 values, as 16-bit integers, of all shards."""
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", offset=8 + length)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            yield name, data[first:last].view(np.uint16).reshape(entry["shape"])


def renamed(name: str) -> str:
    """Return what llama.cpp calls a tensor."""
    name = name.removesuffix(".weight").removeprefix("model.")
    if not name.startswith("layers."):
        return f"{_MODEL.get(name, 'output')}.weight"
    _, number, rest = name.split(".", 2)
    return f"blk.{number}.{LAYER[rest]}.weight"


def _permuted(values: Any, name: str, config: Mapping[str, Any]) -> Any:
    """Order the rows of queries and keys as llama.cpp rotates them: in pairs of neighbours."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    which = heads.get(name.split(".")[-2])
    if which is None:
        return np.ascontiguousarray(values)
    rows, columns = values.shape
    halves = values.reshape(config[which], 2, -1, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _as_float32(values: Any) -> Any:
    return (values.astype(np.uint32) << 16).view(np.float32)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
