# SPDX-License-Identifier: Apache-2.0
"""GGUF files made of tiny checkpoints as llama.cpp makes them, and ggml's own quantizers by ctypes."""

import ctypes
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import libggml
import numpy as np
from safetensors.numpy import load_file

from qeff_zoo.checkpoint.gguf.names import layouts

Array = np.ndarray[Any, Any]

_BASE = ctypes.CDLL(str(next(Path(libggml.__file__).parent.rglob("libggml-base.so"))))


class _Traits(ctypes.Structure):  # struct ggml_type_traits
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("nbytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


_BASE.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
_BASE.ggml_quantize_chunk.restype = ctypes.c_size_t
_BASE.ggml_quantize_chunk.argtypes = [
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    *[ctypes.c_int64] * 3,
    ctypes.c_void_p,
]


def quantize(matrix: Array, name: str) -> Array:
    """Quantize (…, columns) float32 to (…, bytes of a row) uint8, as ggml does."""
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F16", "BF16"):
        return gguf.quants.quantize(matrix, kind)
    matrix = np.ascontiguousarray(matrix, np.float32)
    columns = matrix.shape[-1]
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros((*matrix.shape[:-1], columns // block * nbytes), np.uint8)
    weights = np.ones(columns, np.float32)  # some types need to know what matters
    _BASE.ggml_quantize_chunk(
        *(int(kind), matrix.ctypes.data, out.ctypes.data, 0),
        *(matrix.size // columns, columns, weights.ctypes.data),
    )
    return out


def dequantize(blocks: Array, name: str) -> Array:
    """Dequantize (rows, bytes) uint8 by ggml's reference code."""
    kind = int(gguf.GGMLQuantizationType[name])
    traits = _BASE.ggml_get_type_traits(kind).contents
    blocks = np.ascontiguousarray(blocks)
    out = np.empty((len(blocks), blocks.shape[1] // traits.nbytes * traits.block), np.float32)
    to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    to_float(traits.to_float)(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def original(folder: Path) -> dict[str, Array]:
    """Read a checkpoint's tensors in float32; converters leave BERT's pooler out."""
    return {
        name: value.astype(np.float32)
        for file in folder.glob("*.safetensors")
        for name, value in load_file(file).items()
        if not name.startswith("pooler.")
    }


def stored(folder: Path) -> dict[str, Array]:
    """Give the tensors of a checkpoint as llama.cpp's converters store them, in float32, under their names."""
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    architecture = layouts()[kind].architecture
    if "moe" in config.get("layers_block_type", ()):
        architecture += "_moe"
    layers = max(layers_of(config), config.get("num_decoder_layers") or 0)
    names = gguf.get_tensor_name_map(_arch(architecture), layers)
    heads = config.get("num_attention_heads") or config.get("n_head")
    key_heads = _key_heads(config)
    made: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, value in _named(original(folder), config).items():
        parts = name.split(".")
        if "act_fn" in parts:
            continue  # metadata
        if "experts" in parts and parts[parts.index("experts") + 1].isdigit():
            del parts[parts.index("experts") + 1]
            stacks.setdefault(_as_mlp(".".join(parts)), []).append(value)
        else:
            made[name] = _changed(
                _reordered(value, name, config),
                *(name, kind, heads, key_heads),
                config.get("n_groups") or config.get("mamba_n_groups") or 1,
            )
    made |= {name: np.stack(items) for name, items in stacks.items()}
    made = {name: value * _multiplier(name, config) for name, value in made.items()}
    found = {}
    for name, value in made.items():
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if "router." in name and name.endswith("scale"):
            tensor = "ffn_gate_inp" if name.endswith("router.scale") else "ffn_down_exps"
            place = f"blk.{name.split('.')[2]}.{tensor}.scale"
        assert place is not None, name
        found[place] = value
    return found


def parameters_of(folder: Path) -> dict[str, list[float]]:
    """Give the parameters of a checkpoint that are metadata: values of each layer."""
    found: dict[str, list[float]] = {}
    for name, value in sorted(original(folder).items()):
        if ".act_fn." in name:
            found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(value.item())
    return found


def _key_heads(config: Mapping[str, Any]) -> int:
    if config["model_type"] == "falcon" and config.get("multi_query", True):
        return 1
    heads = config.get("num_attention_heads") or config.get("n_head") or 0
    return int(config.get("num_key_value_heads") or heads)


def _arch(architecture: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def layers_of(config: Mapping[str, Any]) -> int:
    named = (config.get(key) for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"))
    return int(next(filter(None, named), 0) or len(config["layers_block_type"]))


def _as_mlp(name: str) -> str:
    """Call the matrices of experts as converters do before they look up the name."""
    place = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
    name = name.replace("feed_forward.experts", "mlp.experts")
    name = name.replace("mixer.experts", "mlp.experts").replace("backbone.", "model.")
    for one, other in place.items():
        name = name.replace(one, other)
    return name.replace("block_sparse_moe", "mlp")


def _named(tensors: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
    """Take apart what is stored apart, and name what converters name otherwise before they look it up."""
    kind = config["model_type"]
    if kind == "gemma3n_text":
        return _streams(tensors, config)
    if kind == "gemma4_text":
        whole = ("gate_up_proj", "experts.down_proj", "layer_scalar")
        return {
            f"{key}.weight" if key.endswith(whole) else key: value for key, value in tensors.items()
        }
    if kind in ("deepseek_v3", "glm_moe_dsa", "kimi_linear"):
        return _latent(tensors, config)
    if kind == "bloom":
        return {name.removeprefix("transformer."): value for name, value in tensors.items()}
    if kind == "qwen3_next":
        return _by_kind(tensors, config)
    if kind == "dbrx":
        count = config["ffn_config"]["moe_num_experts"]
        return {
            f"{name}.weight" if ".experts.mlp." in name else name: _stack(name, value, count)
            for name, value in tensors.items()
        }
    if kind not in ("gpt_oss", "granitemoe", "granitemoehybrid", "llama4_text"):
        return {_of_router(name): value for name, value in tensors.items()}
    made = {}
    for name, value in tensors.items():
        if name.endswith("sinks"):
            made[f"{name}.weight"] = value
        elif "gate_up_proj" in name:
            end = "bias" if name.endswith("bias") else "weight"
            stem = name.removesuffix("_bias").removesuffix("gate_up_proj")
            turned = value if end == "bias" else value.swapaxes(1, 2)
            half = turned.shape[1] // 2
            alternate = kind == "gpt_oss"
            made[f"{stem}gate_proj.{end}"] = turned[:, ::2] if alternate else turned[:, :half]
            made[f"{stem}up_proj.{end}"] = turned[:, 1::2] if alternate else turned[:, half:]
        elif name.endswith("experts.down_proj"):
            made[f"{name}.weight"] = value.swapaxes(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            made[name.replace("_bias", ".bias")] = value
        elif name.endswith("shared_mlp.input_linear.weight"):
            stem = name.replace("shared_mlp.input_linear", "{}")
            parts = np.split(value, 2)
            shared = "mlp.shared_expert." if config.get("num_local_experts") else "mlp."
            for half, part in zip(("gate_proj", "up_proj"), parts, strict=True):
                made[stem.format(f"{shared}{half}")] = part
        elif name.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
            made[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = value
        elif name.endswith("dt_bias"):
            made[name.replace("dt_bias", "dt_proj.bias")] = value
        elif name.endswith("input_linear.weight"):
            half = value.shape[1] // 2
            stem = name.removesuffix("input_linear.weight")
            made[f"{stem.replace('block_sparse_moe', 'mlp')}experts.gate_proj.weight"] = value[
                :, :half
            ]
            made[f"{stem.replace('block_sparse_moe', 'mlp')}experts.up_proj.weight"] = value[
                :, half:
            ]
        else:
            made[name] = value
    return made


def _streams(tensors: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
    """Stack the projections of Gemma 3n's streams, and give layers that share keys and values matrices of their own."""
    made = {
        f"{name}.weight" if name.endswith("_scale") else name: value
        for name, value in tensors.items()
    }
    for kind in ("altup_projections", "altup_unembed_projections"):
        parts = [
            made.pop(f"model.{kind}.{at}.weight") for at in range(config["altup_num_inputs"] - 1)
        ]
        made[f"model.{kind}.weight"] = np.stack(parts)
    for name in [one for one in made if ".layers.0.self_attn." in one and ".q_" not in one]:
        for layer in range(config["num_hidden_layers"]):
            made.setdefault(name.replace(".0.", f".{layer}."), np.zeros_like(made[name]))
    return made


def _stack(name: str, value: Array, count: int) -> Array:
    """Take the matrices of experts apart, which lie below each other, and transpose those of w2."""
    if ".experts.mlp." not in name:
        return value
    stack = value.reshape(count, -1, value.shape[-1])
    return stack.swapaxes(1, 2) if name.endswith("w2") else stack


def _by_kind(tensors: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
    """Take queries, keys and values of linear attention, and gates, out of the matrix of all key heads."""
    groups, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    made = {}
    for name, value in tensors.items():
        if name.endswith("in_proj_qkvz.weight"):
            heads = value.reshape(groups, -1, value.shape[-1])
            rest = (heads.shape[1] - 2 * size) // 2
            parts = np.split(heads, [size, 2 * size, 2 * size + rest], 1)
            queries, keys, values, gates = (part.reshape(-1, value.shape[-1]) for part in parts)
            made[name.replace("qkvz", "qkv")] = np.concatenate([queries, keys, values])
            made[name.replace("qkvz", "z")] = gates
        else:
            made[_of_router(name)] = value
    return made


def _latent(tensors: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
    """Take keys and values of latent attention apart, and transpose those of keys."""
    made = {}
    for name, value in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            heads = value.reshape(config["num_attention_heads"], -1, value.shape[-1])
            size = config["qk_nope_head_dim"]
            made[name.replace("kv_b", "k_b")] = heads[:, :size].swapaxes(1, 2)
            made[name.replace("kv_b", "v_b")] = heads[:, size:]
        else:  # transformers saves dense layers of Kimi Linear under the name of experts
            made[_of_router(_DENSE.sub("mlp", name))] = value
    return made


#: Name of a layer of experts before a matrix of a dense one.
_DENSE = re.compile(r"block_sparse_moe(?=\.(gate|up|down)_proj\.)")


def _of_router(name: str) -> str:
    """Call the biases of routers as converters do before they look up the name."""
    for end, other in _CALLED.items():
        name = name.removesuffix(end) + other if name.endswith(end) else name
    return name


_CALLED = {
    "correction_bias": "correction.bias",
    "expert_bias": "expert_bias.bias",
    "dt_bias": "dt_proj.bias",
}


def _reordered(value: Array, name: str, config: Mapping[str, Any]) -> Array:
    """Put value heads of linear attention in turns, one of each key head, as converters do."""
    if not config["model_type"].startswith("qwen3_5") or "linear_attn" not in name:
        return value
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = config["linear_value_head_dim"]

    def in_turns(rows: Array) -> Array:
        parts = rows.reshape(groups, heads // groups, -1, *rows.shape[1:])
        return parts.swapaxes(0, 1).reshape(rows.shape)

    if name.endswith("out_proj.weight"):
        return in_turns(np.ascontiguousarray(value.T)).T
    if "in_proj_qkv" in name or "conv1d" in name:
        keys = len(value) - heads * size
        return np.concatenate([value[:keys], in_turns(value[keys:])])
    return value if name.endswith("linear_attn.norm.weight") else in_turns(value)


def _multiplier(name: str, config: Mapping[str, Any]) -> Any:
    """Give what converters multiply a weight of Falcon-H1 with."""
    if config["model_type"] != "falcon_h1":
        return np.float32(1)
    within, (gate, down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    if name.endswith("in_proj.weight"):
        groups = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [config["mamba_d_ssm"]] * 2 + [groups] * 2 + [config["mamba_n_heads"]]
        rows = np.repeat(np.float32(config["ssm_multipliers"]), sizes)[:, None]
        return rows * np.float32(config["ssm_in_multiplier"])
    ends = {
        "down_proj.weight": down,
        "gate_proj.weight": gate,
        "k_proj.weight": config["key_multiplier"] * within,
        "q_proj.weight": within,
        "v_proj.weight": within,
        "o_proj.weight": config["attention_out_multiplier"],
        "out_proj.weight": config["ssm_out_multiplier"],
        "lm_head.weight": config["lm_head_multiplier"],
        "embed_tokens.weight": config["embedding_multiplier"],
    }
    return np.float32(next((value for end, value in ends.items() if name.endswith(end)), 1))


def _changed(value: Array, name: str, kind: str, heads: int, key_heads: int, groups: int) -> Array:
    if kind in ROTATED and any(f"{letter}_proj." in name for letter in "qk"):
        count = heads if "q_proj" in name else key_heads
        halves = value.reshape(count, 2, -1, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)
    if "query_key_value" in name:
        queries = heads // key_heads
        groups = value.reshape(key_heads, queries + 2, -1, *value.shape[1:])
        parts = (groups[:, :queries], groups[:, queries], groups[:, queries + 1])
        return np.concatenate([part.reshape(-1, *value.shape[1:]) for part in parts])
    if kind in PLUS_ONE and name.endswith("norm.weight") and "linear_attn" not in name:
        return value + np.float32(1)
    if kind in STATE_SPACES and name.endswith((".A_log", ".D")):
        return (-np.exp(value) if name.endswith(".A_log") else value)[:, None]
    if kind in STATE_SPACES and name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return value.reshape(groups, -1)
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return value.T
    if name.endswith("A_log"):
        return -np.exp(value)
    if name.endswith("moe_statics.e_score_correction.bias"):
        return value.squeeze(0)
    if kind == "kimi_linear" and name.endswith("conv1d.weight"):
        return value.reshape(1, len(value), 1, -1)
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        return value.squeeze(1)
    return value.squeeze(0) if name.endswith("shared_expert_gate.weight") else value


#: Models whose norms converters store plus one.
PLUS_ONE = (
    *(
        "gemma",
        "gemma2",
        "gemma3_text",
        "nemotron",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "qwen3_next",
    ),
)
#: Models with state space layers of heads.
STATE_SPACES = ("mamba2", "granitemoehybrid", "nemotron_h", "falcon_h1")
#: Models whose rows of queries and keys converters put into another order.
ROTATED = (
    "llama",
    "ministral3",
    "mistral",
    "mixtral",
    "iquestcoder",
    "arcee",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "olmo",
    "smollm3",
)


#: Metadata of linear attention, and their fields.
LINEAR = {
    "time_step_rank": "linear_num_value_heads",
    "group_count": "linear_num_key_heads",
    "state_size": "linear_key_head_dim",
}


def write(
    target: Path,
    folder: Path,
    kinds: Mapping[str, str] | str = "F32",
    *,
    tokens: bool = False,
    extra: Mapping[str, Array] | None = None,
    **metadata: Any,
) -> Path:
    """Write a GGUF file of a checkpoint.

    Args:
        target: The file.
        folder: The checkpoint.
        kinds: Type of all matrices, or of those whose names end so.
        tokens: With the tokenizer.
        extra: Further tensors, in float32.
        metadata: Beside what the configuration says; `__` stands for a dot.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = layouts()[config["model_type"]].architecture
    writer = gguf.GGUFWriter(target, architecture)
    heads = config.get("num_attention_heads") or config.get("n_head")
    if heads:
        writer.add_head_count(heads)
        writer.add_head_count_kv(_key_heads(config))
    for key, field in LINEAR.items():
        if field in config:
            writer.add_uint32(f"{architecture}.ssm.{key}", config[field])
    writer.add_block_count(layers_of(config))
    width = next(config[key] for key in ("hidden_size", "n_embd", "d_model") if key in config)
    writer.add_embedding_length(width)
    if tokens:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        writer.add_vocab_size(config["vocab_size"])
        _add_tokenizer(writer, folder)
    for key, value in metadata.items():
        adds = {str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}
        adds[type(value)](key.replace("__", "."), value)
    for key, values in parameters_of(folder).items():
        writer.add_array(key, values)
    for name, value in {**stored(folder), **(extra or {})}.items():
        value = np.ascontiguousarray(value, np.float32)
        ends = {"": kinds} if isinstance(kinds, str) else kinds
        kind = next((entry for end, entry in ends.items() if name.endswith(end)), "F32")
        if kind == "F32" or value.ndim < 2 or "norm" in name:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(
                name, quantize(value, kind), raw_dtype=gguf.GGMLQuantizationType[kind]
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_tokenizer(writer: Any, folder: Path) -> None:
    message = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in message["added_tokens"]}
    vocabulary = sorted({**message["model"]["vocab"], **special}.items(), key=lambda pair: pair[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    writer.add_token_merges(
        [
            merge if isinstance(merge, str) else " ".join(merge)
            for merge in message["model"]["merges"]
        ]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
