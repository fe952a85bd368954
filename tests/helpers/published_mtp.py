# SPDX-License-Identifier: Apache-2.0
"""Tiny models with an MTP layer, written as they are published, and what their authors' code makes of it.

Names, the order in which tokens and hidden states are joined, and the place of the last norm are those of vLLM's
`deepseek_mtp`, `glm4_moe_mtp`, `hy_v3_mtp`, `qwen3_next_mtp`, `qwen3_5_mtp`, `exaone_moe_mtp`, `mimo_mtp`,
`mimo_v2_mtp`, `longcat_flash_mtp`, `nemotron_h_mtp`, `minimax_m3` and `hy_v4`, of transformers' `MtpModel` (Mellum), of
XiaomiMiMo's `modeling_mimo.py`, of inclusionAI's modeling code for Ling 3, and of Baidu's FastDeploy (`ernie4_5_mtp`),
which norms what the layer of ERNIE hands on.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from qeff_zoo import registry
from qeff_zoo.export.architectures import register

_FULL, _LINEAR, _SLIDING = "full_attention", "linear_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Published:
    """How one kind of checkpoint has its MTP layer.

    Args:
        small: What makes a recipe's tiny model small.
        one: What makes a model of the layer alone.
        layer: What the names of the layer's tensors begin with, and what those of the model of one layer begin with.
        front: Names of the norms of tokens and of hidden states, of what joins them, and of the last norm.
        called: Other names of parts of the layer.
        own: Names of embeddings and of the matrix of logits, if it has its own.
        hidden_first: Whether hidden states are joined in front of tokens.
        hands_normed: Whether what it hands on has passed the last norm.
        norm: Of the model of one layer, its last.
        kind: Of the model of one layer, where it is another.
        neutral: What that has and the published layer has not, by parts of names, and values by which it does nothing.
        scaled: Norms of that, by parts of names, whose results are multiplied by the root of a ratio of two sizes.
    """

    small: Mapping[str, Any]
    one: Mapping[str, Any]
    layer: tuple[str, str] = ("model.layers.2.", "model.layers.0.")
    front: tuple[str, str, str, str]
    called: Mapping[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    hidden_first: bool = False
    hands_normed: bool = True
    norm: str = "model.norm"
    kind: str = ""
    neutral: Mapping[str, float] = field(default_factory=dict)
    scaled: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def _names(prefix: str, *names: str) -> Any:
    return tuple(prefix + name for name in names)


def _deepseek(small: Mapping[str, Any], one: Mapping[str, Any]) -> Published:
    return Published(
        small=small,
        one=one,
        front=_names("model.layers.2.", "enorm", "hnorm", "eh_proj", "shared_head.norm"),
        own=_names("model.layers.2.", "embed_tokens", "shared_head.head"),
        hands_normed=False,
    )


def _qwen(small: Mapping[str, Any], one: Mapping[str, Any]) -> Published:
    return Published(
        small=small,
        one=one,
        layer=("mtp.layers.0.", "model.layers.0."),
        front=_names("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    )


_TWO = {"num_hidden_layers": 2}
_DENSE_FIRST = {**_TWO, "first_k_dense_replace": 1}
_BOTH = {**_TWO, "layer_types": [_LINEAR, _FULL]}
_WINDOWS = {**_TWO, "layer_types": [_SLIDING, _FULL], "mlp_layer_types": ["dense", "sparse"]}
#: By model_type.
KINDS: dict[str, Published] = {
    "deepseek_v3": _deepseek(_DENSE_FIRST, {"first_k_dense_replace": 0}),
    "deepseek_v32": _deepseek(_DENSE_FIRST, {"first_k_dense_replace": 0}),
    "glm4_moe": _deepseek(_DENSE_FIRST, {"first_k_dense_replace": 0}),
    "glm4_moe_lite": _deepseek(
        {**_TWO, "mlp_layer_types": ["dense", "sparse"]}, {"mlp_layer_types": ["sparse"]}
    ),
    "glm_moe_dsa": _deepseek(
        {**_DENSE_FIRST, "indexer_types": ["full", "shared"]},
        {"first_k_dense_replace": 0, "indexer_types": ["full"]},
    ),
    "hy_v3": Published(
        small={**_TWO, "mlp_layer_types": ["dense", "sparse"]},
        one={"mlp_layer_types": ["sparse"]},
        front=_names("model.layers.2.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
    ),
    "bailing_hybrid": Published(
        small={**_BOTH, "mlp_layer_types": ["dense", "sparse"]},
        one={"layer_types": [_FULL], "mlp_layer_types": ["sparse"]},
        front=_names("model.layers.2.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
    ),
    "hy_v4": Published(
        small={
            **_TWO,
            "mlp_layer_types": ["dense", "sparse"],
            "indexer_types": ["full", "shared"],
            "index_topk": 64,  # all: keys of equal scores may be left out by either side
        },
        one={
            "mlp_layer_types": ["sparse"],
            "indexer_types": ["full"],
            "hc_mult": 1,
            "hc_magnitude": 1.0,
            "hc_eps": 0.0,  # a stream, added to once
        },
        layer=("model.mtp_layers.0.", "model.layers.0."),
        front=_names("model.mtp_layers.0.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
        neutral={"_fn": 0.0, "_base": 100.0, "_scale": 0.0},
    ),
    "longcat_flash": Published(
        small={"num_layers": 1},
        one={"num_hidden_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 96},
        layer=("model.mtp.layers.0.", "model.layers.0."),
        front=(
            *_names("model.mtp.layers.0.", "enorm.m", "hnorm.m", "eh_proj"),
            "model.mtp.norm",
        ),
        called={"mlp.": "transformer_layer.mlp."},
        own=("model.mtp.embed_tokens",),
        kind="deepseek_v3",
        scaled={
            "q_a_layernorm": ("hidden_size", "q_lora_rank"),
            "kv_a_layernorm": ("hidden_size", "kv_lora_rank"),
        },
    ),
    "minimax_m3_vl_text": Published(
        small={
            **_TWO,
            "layer_types": [_FULL, "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
        },
        one={"layer_types": ["minimax_m3_sparse"], "mlp_layer_types": ["sparse"]},
        layer=("model.mtp.layers.0.transformer_layer.", "model.layers.0."),
        front=_names("model.mtp.layers.0.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
        hands_normed=False,
    ),
    "qwen3_next": _qwen(
        {**_BOTH, "mlp_only_layers": [0]}, {"layer_types": [_FULL], "mlp_only_layers": []}
    ),
    "qwen3_5_text": _qwen(_BOTH, {"layer_types": [_FULL]}),
    "qwen3_5_moe_text": _qwen(_BOTH, {"layer_types": [_FULL]}),
    "qwen3_5": _qwen(_BOTH, {"layer_types": [_FULL]}),
    "qwen3_5_moe": _qwen(_BOTH, {"layer_types": [_FULL]}),
    "mellum": _qwen(
        {**_WINDOWS, "num_nextn_predict_layers": 1},
        {"layer_types": [_SLIDING], "mlp_layer_types": ["sparse"], "num_nextn_predict_layers": 0},
    ),
    "exaone_moe": _qwen(
        {**_WINDOWS, "mtp_layer_types": [_FULL], "mtp_sliding_windows": [0]},
        {"layer_types": [_FULL], "mlp_layer_types": ["dense"]},
    ),
    "mimo": Published(
        small=_TWO,
        one={},
        layer=("model.mtp_layers.0.", "model.layers.0."),
        front=_names(
            "model.mtp_layers.0.",
            *("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
        ),
        hidden_first=True,
    ),
    "mimo_v2_flash": Published(
        small=_WINDOWS,
        one={"layer_types": [_SLIDING], "mlp_layer_types": ["dense"]},
        layer=("model.mtp.layers.0.", "model.layers.0."),
        front=_names("model.mtp.layers.0.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
        called={"post_attention_layernorm": "pre_mlp_layernorm"},
    ),
    "ernie4_5_moe": Published(
        small={**_TWO, "moe_layer_start_index": 1},
        one={"moe_layer_start_index": 1},
        layer=("model.mtp_block.0.", "model.layers.0."),
        front=(
            *_names("model.mtp_", "emb_norm.0", "hidden_norm.0", "linear_proj.0"),
            "model.norm",
        ),
    ),
    "nemotron_h": Published(
        small={
            "layers_block_type": [_LINEAR, "moe", _FULL, "mlp"],
            "mtp_layers_block_type": [_FULL, "moe"],
        },
        one={"layers_block_type": [_FULL, "moe"]},
        layer=("mtp.layers.", "backbone.layers."),
        front=_names("mtp.layers.", "0.enorm", "0.hnorm", "0.eh_proj", "1.final_layernorm"),
        norm="model.norm_f",
    ),
}


def write(model_type: str, folder: Path) -> Path:
    """Write a recipe's tiny model with an MTP layer, whose tensors are named as in published checkpoints."""
    kind = KINDS[model_type]
    tiny = registry.find_recipe(model_type).tiny[0].config
    config = {"model_type": model_type, **copy.deepcopy(dict(tiny))}  # transformers writes into it
    if "text_config" in config:
        of_text = {"model_type": f"{model_type}_text", **config["text_config"], **kind.small}
        tensors = _of_model({**config, "text_config": of_text}, folder)
        config = of_text
    else:
        config |= kind.small
        tensors = _of_model(config, folder)
    one = {"num_hidden_layers": 1} if "layers_block_type" not in kind.one else {}
    own = {key: value for key, value in config.items() if not key.startswith("mtp_")}
    own["model_type"] = kind.kind or own["model_type"]
    inner = _of_model({**own, **kind.one, **one}, folder / "inner")
    reference, plain = kind.layer
    for name, tensor in inner.items():
        if neutral := [value for part, value in kind.neutral.items() if name.endswith(part)]:
            tensor.fill_(neutral[0])
        elif name.startswith(plain):
            for ours, other in kind.called.items():
                name = name.replace(ours, other)
            tensors[name.replace(plain, reference)] = tensor
    save_file(inner, folder / "inner" / "model.safetensors", metadata={"format": "pt"})
    size = config["hidden_size"]
    token, hidden, join, norm = kind.front
    for name in (token, hidden, norm):
        if f"{name}.weight" not in tensors:
            tensors[f"{name}.weight"] = 1 + torch.randn(size) / 2
    tensors[f"{join}.weight"] = torch.randn(size, 2 * size) / (2 * size) ** 0.5
    for name, like in zip(kind.own, ("model.embed_tokens", "lm_head"), strict=False):
        tensors[f"{name}.weight"] = inner[f"{like}.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _of_model(config: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    """Write a model with random weights; return them."""
    register(config["model_type"])
    parsed = CONFIG_MAPPING[config["model_type"]](**config)
    _class_of(parsed).from_config(parsed).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def _class_of(config: Any) -> Any:
    seeing = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if seeing else AutoModelForCausalLM


def loaded(folder: Path) -> Any:
    """Return Hugging Face's model of a folder."""
    kind = _class_of(AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def drafted(model_type: str, folder: Path, tokens: list[int], after: list[int]) -> Tensor:
    """Return the logits (tokens, vocab) that the layer says behind a text, told what follows.

    Args:
        model_type: Of `KINDS`.
        folder: As `write` left it.
        tokens: That the model has run.
        after: The token that it said then, and those that are drafted but for the last.
    """
    kind, stored = KINDS[model_type], load_file(folder / "model.safetensors")
    model, inner = loaded(folder), loaded(folder / "inner")
    for name, parameter in inner.named_parameters():
        for one, (size, other) in kind.scaled.items():
            if one in name:
                parameter.data *= (
                    getattr(model.config, size) / getattr(model.config, other)
                ) ** 0.5
    token, hidden, join, last = (stored[f"{name}.weight"] for name in kind.front)
    norm = inner.get_submodule(kind.norm)
    plain = norm.weight.data.clone()

    def normed(values: Tensor, weight: Tensor) -> Tensor:
        norm.weight.data = weight
        result: Tensor = norm(values)
        norm.weight.data = plain
        return result

    embed = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    if kind.own:
        embed, *heads = (stored[f"{name}.weight"] for name in kind.own)
        head = heads[0] if heads else head
    states = model.base_model(torch.tensor([tokens])).last_hidden_state
    before: list[Tensor] = []
    norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
    read, found = [*tokens[1:], after[0]], []
    for output in [*after[1:], 0]:
        pair = normed(embed[torch.tensor([read])], token), normed(states, hidden)
        joined = torch.cat(pair[::-1] if kind.hidden_first else pair, -1) @ join.T
        inner.get_decoder()(inputs_embeds=joined, use_cache=False)
        made = before[-1]
        found.append((normed(made, last) @ head.T)[0, -1])
        handed = normed(made, last) if kind.hands_normed else made
        # What was joined stays; the layer goes on from what it made of the newest.
        states, read = torch.cat([states, handed[:, -1:]], 1), [*read, output]
    return torch.stack(found)
