# SPDX-License-Identifier: Apache-2.0
"""GGUF files, decoded for the reference by gguf-py: for each parameter of the model, what llama.cpp made of it.

Names are those that gguf-py gives the tensors of a Hugging Face model, and what llama.cpp's converters did to values is
undone. Source: https://github.com/ggml-org/llama.cpp `convert_hf_to_gguf.py`.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from qeff_zoo.validation.reference.formats.files import Decoded

#: What converters do to the values of an architecture, for each architecture that is known here: rows of queries and
#: keys are turned, norms are stored plus 1, matrices are transposed, the projection of each head is taken apart.
_DONE: Mapping[str, str] = MappingProxyType(
    {
        "turns": "llama arcee baichuan granite granitehybrid granitemoe internlm2 mistral3 olmo smollm3",
        "adds": "gemma gemma-embedding gemma2 gemma3 nemotron qwen35 qwen35moe",
        "adds, and parts heads": "qwen3next",
        "takes apart": "bloom falcon gptneox",
        "stacks heads": "nomic-bert",
        "transposes": " gpt2",  # core names no recipe
        "transposes experts": "gpt-oss",
        "transposes halves": " llama4",
        "": "afmoe apertus bert chatglm cohere2 command-r dbrx deepseek2 dots1 ernie4_5 ernie4_5-moe eurobert "
        "exaone-moe exaone4 falcon-h1 gemma3n gemma4 glm-dsa glm4 glm4moe hunyuan-dense hunyuan-moe jamba "
        "kimi-linear "
        "jina-bert-v2 lfm2 lfm2moe mamba mamba2 minicpm3 minimax-m2 modern-bert mpt nemotron_h nemotron_h_moe "
        "olmo2 olmoe phi2 phi3 qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss "
        "stablelm starcoder starcoder2 t5 t5encoder",
    }
)
#: Said by the configuration too.
_ROPE = ("rope_freqs.", "rope_factors_")
_ENDS = (".weight", ".bias")
_PARAMETERS = "xielu."  # of an activation, metadata with a value of each layer
#: Ends of names that converters change before they look up a name.
_CALLED = {"expert_bias": "expert_bias.bias", "dt_bias": "dt_proj.bias"}
_STREAMS = re.compile(r"(model\.altup_\w+)\.(\d+)\.weight")
_SCALES = re.compile(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)")
_HEADS = re.compile(r"model\.layers\.(\d+)\.self_attn\.[qkv]_proj")
#: Kind and length of an array in the metadata, and the length of a text in it.
_ARRAYS, _TEXTS = int(gguf.GGUFValueType.ARRAY), int(gguf.GGUFValueType.STRING)
_ARRAY, _LENGTH = struct.Struct("<IQ"), struct.Struct("<Q")
_TOGETHER = 16  # rows that gguf-py dequantizes at once
_CACHED = 1 << 17  # bytes of them, which stay in a processor's cache


class _Reader(gguf.GGUFReader):
    """gguf-py's reader without its cost for each entry of a vocabulary: 10 to 20 seconds for 262,144 of them."""

    @property
    def data(self) -> Any:
        """Bytes of the file."""
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = mapped.view(np.ndarray)  # slices of a memmap take four times as long

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Measure an array, none of which is read here."""
        if raw_type != _ARRAYS or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = _ARRAY.unpack_from(self._data, orig_offs)
        end = orig_offs + _ARRAY.size
        if kind == _TEXTS:
            for _ in range(count):
                end += _LENGTH.size + _LENGTH.unpack_from(self._data, end)[0]
        elif kind != _ARRAYS:
            end += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [self._data[orig_offs:end]], [], [raw_type, kind]


class _Tensors(Mapping[str, Tensor]):
    """The tensors of GGUF files, decoded on demand, and parameters among their metadata."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.readers = [_Reader(path) for path in paths]
        self._found = {tensor.name: tensor for reader in self.readers for tensor in reader.tensors}
        fields = self.readers[0].fields.items()
        self._numbers = {
            key: field.parts[-1][_ARRAY.size :].view("<f4")
            for key, field in fields
            if key.startswith(_PARAMETERS)
        }

    def __getitem__(self, name: str) -> Tensor:
        if name in self._numbers:
            return torch.from_numpy(self._numbers[name].copy())
        one = self._found[name]
        decoded = _decoded(one.data, one.tensor_type)
        return torch.from_numpy(np.require(decoded, "f4", "W"))  # floats lie in the file itself

    def __contains__(self, name: object) -> bool:
        return (
            name in self._found or name in self._numbers
        )  # a mapping's own would decode the tensor

    def __iter__(self) -> Iterator[str]:
        return iter((*self._found, *self._numbers))

    def __len__(self) -> int:
        return len(self._found) + len(self._numbers)


def _decoded(data: np.ndarray[Any, Any], kind: Any) -> np.ndarray[Any, Any]:
    """Dequantize a tensor, several rows as if they were one: most of the time goes into calls for few short rows."""
    if data.ndim < 2:  # a vector
        return np.asarray(gguf.quants.dequantize(data, kind))
    rows = math.prod(data.shape[:-1])
    joined = math.gcd(rows, 1 << 12)
    while joined > 1 and _TOGETHER * joined * data.shape[-1] * data.itemsize > _CACHED:
        joined //= 2
    decoded = gguf.quants.dequantize(data.reshape(rows // joined, -1), kind)
    return np.asarray(decoded.reshape(*data.shape[:-1], -1))


def open_tensors(paths: Sequence[Path], config: Any, names: Sequence[str]) -> dict[str, Decoded]:
    """Find a model's parameters in GGUF files.

    Args:
        paths: Paths of the file, or of all parts of a split one.
        config: Config of the text model in transformers.
        names: Names of the model's parameters.

    Raises:
        ValueError: The architecture is not known here, or tensors are left over.
    """
    tensors = _Tensors(paths)
    field = tensors.readers[0].get_field("general.architecture")
    architecture = str(field.contents()) if field else ""
    done = {one: what for what, names_ in _DONE.items() for one in names_.split()}
    if architecture not in done:
        raise ValueError(
            f"The reference cannot undo what was done to {architecture!r}; it knows {', '.join(done)}."
        )
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = max(config.num_hidden_layers, getattr(config, "num_decoder_layers", None) or 0)
    place_of = partial(_place, gguf.get_tensor_name_map(kind, layers), tensors)
    parameters = {}
    for name in names:
        parts = {"value": place_of(name)}
        if "experts.gate_up_proj" in name and not parts["value"]:
            halves = (name.replace("gate_up_proj", half) for half in ("gate_proj", "up_proj"))
            parts = dict(zip(("gate", "up"), map(place_of, halves), strict=True))
        if name.endswith("shared_mlp.input_linear.weight"):
            shared = "mlp.shared_expert" if getattr(config, "num_local_experts", 0) else "mlp"
            halves = (
                name.replace("shared_mlp.input_linear", f"{shared}.{half}_proj")
                for half in ("gate", "up")
            )
            parts = dict(zip(("gate", "up"), map(place_of, halves), strict=True))
        if name.endswith("shared_mlp.output_linear.weight") and not parts["value"]:
            parts["value"] = place_of(name.replace("shared_mlp.output_linear", "mlp.down_proj"))
        if name.endswith("self_attn.conv1d.weight"):
            kinds = {
                letter: place_of(name.replace("conv1d", f"{letter}_conv1d")) for letter in "qkv"
            }
            parts = dict(zip(("queries", "keys", "values"), kinds.values(), strict=True))
        if name.endswith("in_proj_qkvz.weight") and not parts["value"]:
            halves = (name.replace("qkvz", half) for half in ("qkv", "z"))
            parts = dict(zip(("heads", "gates"), map(place_of, halves), strict=True))
        if ".act_fn." in name:
            layer, end = int(name.split(".")[2]), name.rpartition(".")[2]
            parameters[name] = Decoded(
                tensors, {"value": f"{_PARAMETERS}{end}"}, partial(_of_layer, layer, end)
            )
            continue
        gate = place_of(name.replace("gated_layers", "gated_layers_w"))
        if "gated_layers" in name and gate:
            parts = {"gate": gate, "up": parts["value"]}
        if name.endswith("kv_b_proj.weight") and not parts["value"]:
            halves = (name.replace("kv_b", half) for half in ("k_b", "v_b"))
            parts = dict(zip(("keys", "values"), map(place_of, halves), strict=True))
        if stack := _STREAMS.fullmatch(name):
            stored = place_of(f"{stack[1]}.weight")
            parameters[name] = Decoded(
                tensors, {"value": str(stored)}, partial(_item, int(stack[2]))
            )
            continue
        whole = _HEADS.sub(r"transformer.h.\1.self_attention.query_key_value", name)
        if whole != name and not parts["value"] and (stored := place_of(whole)):
            rows = partial(_rows, "qkv".index(name.split("_proj")[0][-1]), config)
            parameters[name] = Decoded(tensors, {"value": stored}, rows)
            continue
        sources = {part: place for part, place in parts.items() if place}
        if sources:  # a head that is not there is tied
            undo = (
                _latent_heads
                if "keys" in sources and "queries" not in sources
                else _undo(done[architecture], name, config)
            )
            undo = _joined if "gated_layers" in name and "gate" in sources else undo
            undo = _as_it_is if "gate_up_proj" in name and "value" in sources else undo
            parameters[name] = Decoded(tensors, sources, undo)
    used = {place for parameter in parameters.values() for place in parameter.sources.values()}
    drafts = _draft_layers(tensors.readers[0], architecture, layers) + _sharing_layers(config)
    if left := [
        name for name in tensors if name not in used and not name.startswith(_ROPE + drafts)
    ]:
        raise ValueError(f"The reference does not know what these are for: {left[:5]}.")
    return parameters


def _draft_layers(reader: Any, architecture: str, layers: int) -> tuple[str, ...]:
    """Return how the names of tensors of layers begin that draft tokens, behind the model's own."""
    field = reader.get_field(f"{architecture}.nextn_predict_layers")
    return tuple(f"blk.{layers + at}." for at in range(field.contents() if field else 0))


def _sharing_layers(config: Any) -> tuple[str, ...]:
    """Return how the names of keys and values begin in layers that read those of an earlier one."""
    layers, shared = config.num_hidden_layers, getattr(config, "num_kv_shared_layers", None) or 0
    return tuple(
        f"blk.{at}.attn_{letter}" for at in range(layers - shared, layers) for letter in "kv"
    )


def _place(names: gguf.TensorNameMap, tensors: Mapping[str, Tensor], name: str) -> str | None:
    """Return the tensor that is made of a parameter; None without one. Experts have no ".weight" in the model."""
    name = name.replace("block_sparse_moe", "mlp").replace("feed_forward.experts", "mlp.experts")
    name = name.replace("gate.moe_statics", "moe_statics").replace("mixer.experts", "mlp.experts")
    name = name.replace("self_attn.forget_gate.", "self_attn.")
    for end, other in _CALLED.items():
        name = name.removesuffix(end) + other if name.endswith(end) else name
    name = f"{name.removesuffix('_bias')}.bias" if name.endswith("_bias") else name
    if scale := _SCALES.fullmatch(name):
        return f"blk.{scale[1]}.{'ffn_gate_inp' if scale[2] == 'scale' else 'ffn_down_exps'}.scale"
    nomic = re.sub(r"^(layers\.\d+)\.self_attn\.[qkv]_proj", r"encoder.\1.attn.Wqkv", name)
    nomic = nomic.replace("post_attention_layernorm", "norm1").replace(
        "post_mlp_layernorm", "norm2"
    )
    nomic = nomic if nomic.startswith("encoder.") else f"encoder.{nomic}"
    backbone = f"backbone.{name.removeprefix('model.')}"
    for whole in (name, f"model.{name}", name.removeprefix("transformer."), nomic, backbone):
        for end in ("", ".weight"):
            stored = names.get_name(f"{whole}{end}", try_suffixes=_ENDS)
            if stored in tensors:
                return str(stored)
    return None


def _undo(done: str, name: str, config: Any) -> Callable[..., Tensor]:
    """Return what makes a parameter of its tensor."""
    module = name.split(".")[-2] if "." in name else ""
    if name.endswith("in_proj_qkvz.weight"):
        return partial(_by_key_heads, config)
    if ".linear_attn." in name and done == "adds":
        return partial(_delta_attention, name.rpartition("linear_attn.")[2], config)
    if name.endswith("linear_attn.norm.weight"):
        return _as_it_is
    if "input_linear" in name:
        return _joined
    if "experts.gate_up_proj" in name:
        return {"transposes experts": _in_turns, "transposes halves": _turned}.get(done, _joined)
    if done == "turns" and module in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if module == "q_proj" else config.num_key_value_heads
        return partial(_turned_back, heads)
    if done.startswith("adds") and name.endswith("norm.weight"):
        return _less_one
    if done == "takes apart" and module == "query_key_value":
        return partial(_together, config.num_attention_heads, _key_heads(config))
    if (done == "transposes" and module.startswith("c_") and name.endswith("weight")) or (
        done in ("transposes experts", "transposes halves") and name.endswith("experts.down_proj")
    ):
        return _transposed
    if done == "stacks heads" and module in ("q_proj", "k_proj", "v_proj"):
        return partial(_third, "qkv".index(module[0]))
    if ".experts.mlp." in name:
        return partial(_below, name.endswith("w2"))
    if name.endswith("self_attn.conv1d.weight"):
        return _kernels
    if name.endswith("forget_gate.A_log"):
        return _logarithm_of_heads
    if name.endswith("A_log"):
        return _logarithm
    if name.endswith((".D", "mixer.norm.weight", "mamba.norm.weight")):
        return _flat
    if name.endswith(("conv.conv.weight", "conv1d.weight")):
        return _kernel
    return _one_row if module in ("shared_expert_gate", "moe_statics") else _as_it_is


def _key_heads(config: Any) -> int:
    """Return how many heads of keys and values a fused projection has."""
    if getattr(config, "multi_query", False):
        return 1
    return int(getattr(config, "num_kv_heads", config.num_attention_heads))


def _together(heads: int, key_heads: int, value: Tensor) -> Tensor:
    """Put queries, keys and values of each group of heads beside each other, which are stored one after the other."""
    size = value.shape[0] // (heads + 2 * key_heads)
    kinds = value.split([heads * size, key_heads * size, key_heads * size])
    groups = [kind.unflatten(0, (key_heads, -1)) for kind in kinds]
    return torch.cat(groups, 1).flatten(0, 1)


def _latent_heads(keys: Tensor, values: Tensor) -> Tensor:
    """Return the rows of keys and values of each head; those of keys are stored transposed."""
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def _rows(number: int, config: Any, value: Tensor) -> Tensor:
    """Return the rows of queries, keys or values of a projection that has one after the other."""
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    size = value.shape[0] // (heads + 2 * key_heads)
    parts: list[Tensor] = value.split([heads * size, key_heads * size, key_heads * size])
    return parts[number]


def _of_layer(layer: int, name: str, value: Tensor) -> Tensor:
    return value[layer : layer + 1] if name.startswith("alpha") else value[layer]


def _item(number: int, value: Tensor) -> Tensor:
    return value[number]


def _third(number: int, value: Tensor) -> Tensor:
    """Return the rows of queries, keys or values of a projection that has one after the other."""
    return value.chunk(3)[number]


def _transposed(value: Tensor) -> Tensor:
    return value.transpose(-1, -2)


def _below(transposes: bool, value: Tensor) -> Tensor:
    """Put the matrices of experts one below the other."""
    return (value.transpose(1, 2) if transposes else value).flatten(0, 1)


def _logarithm(value: Tensor) -> Tensor:
    logarithm = torch.log(-value)
    return logarithm.flatten() if logarithm.shape[-1] == 1 else logarithm  # of a head, or of states


def _logarithm_of_heads(value: Tensor) -> Tensor:
    return torch.log(-value).reshape(1, 1, -1, 1)


def _kernels(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Put the kernels of queries, keys and values one below the other."""
    return torch.cat([one.reshape(-1, 1, one.shape[-1]) for one in (queries, keys, values)])


def _by_key_heads(config: Any, heads: Tensor, gates: Tensor) -> Tensor:
    """Put queries, keys, values and gates of each key head beside each other."""
    groups, keys = (
        config.linear_num_key_heads,
        config.linear_num_key_heads * config.linear_key_head_dim,
    )
    parts = [*heads.split([keys, keys, heads.shape[0] - 2 * keys]), gates]
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


def _delta_attention(name: str, config: Any, value: Tensor) -> Tensor:
    """Put the value heads of each key head beside each other, which are stored in turns."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads

    def beside(rows: Tensor) -> Tensor:
        turns: Tensor = rows.unflatten(0, (heads // groups, groups, -1))
        return turns.transpose(0, 1).flatten(0, 2)

    if name == "norm.weight":
        return value
    if name == "out_proj.weight":
        return beside(value.T).T
    if name in ("in_proj_qkv.weight", "conv1d.weight"):
        keys = 2 * groups * config.linear_key_head_dim
        value = torch.cat([value[:keys], beside(value[keys:])])
        return value.unsqueeze(1) if name == "conv1d.weight" else value
    return beside(torch.log(-value) if name == "A_log" else value)


def _flat(value: Tensor) -> Tensor:
    return value.flatten()


def _kernel(value: Tensor) -> Tensor:
    return value.unsqueeze(1)


def _in_turns(gate: Tensor, up: Tensor) -> Tensor:
    """Return the halves of experts column by column in turns, (experts, columns, 2 * rows), or their biases."""
    both = torch.stack([gate, up], -1)  # (experts, rows, columns, 2) or (experts, rows, 2)
    return (both.transpose(1, 2) if both.dim() > 3 else both).flatten(-2)


def _turned(gate: Tensor, up: Tensor) -> Tensor:
    """Return the halves of experts, one after the other, (experts, columns, 2 * rows)."""
    return _joined(gate, up).transpose(1, 2)


def _turned_back(heads: int, value: Tensor) -> Tensor:
    """Put the halves of each head's rows behind each other, which llama.cpp has in turns."""
    pairs: Tensor = value.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _less_one(value: Tensor) -> Tensor:
    return value - 1


def _one_row(value: Tensor) -> Tensor:
    return value.reshape(1, -1)


def _as_it_is(value: Tensor) -> Tensor:
    return value


def _joined(gate: Tensor, up: Tensor) -> Tensor:
    """Return the two halves of experts, (experts, 2 * rows, columns), or of a matrix, in one."""
    return torch.cat([gate, up], -2)
