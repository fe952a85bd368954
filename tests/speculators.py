# SPDX-License-Identifier: Apache-2.0
"""Heads that draft, with random weights, in the formats in which they are shared."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qeff_zoo import registry

_LAYERS, _INNER = 2, 24


def turbo(folder: Path, hidden: int, vocab: int, heads: int = 3) -> Path:
    """Write heads as QEfficient reads them."""
    sizes = {"turbo_num_layers": _LAYERS, "turbo_num_heads": heads}
    names = [f"projections.{head}.{layer}" for head in range(heads) for layer in range(_LAYERS)]
    return _write(folder, "speculator_config.json", sizes, "speculator", _blocks(names, hidden))


def medusa(folder: Path, hidden: int, vocab: int, heads: int = 3) -> Path:
    """Write heads as Medusa has them: with matrices of their own for logits."""
    sizes = {"medusa_num_layers": 1, "medusa_num_heads": heads}
    tensors = _blocks([f"{head}.0" for head in range(heads)], hidden)
    tensors |= {f"{head}.1.weight": _random(vocab, hidden) for head in range(heads)}
    return _write(folder, "config.json", sizes, "medusa_lm_head", tensors)


def chained(folder: Path, hidden: int, vocab: int, heads: int = 3, *, tied: bool = False) -> Path:
    """Write heads as IBM shares them."""
    sizes = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "n_predict": heads,
        "emb_dim": hidden,
        "inner_dim": _INNER,
        "vocab_size": vocab,
        "tie_weights": tied,
        "scale_input": tied,
    }
    tensors = {}
    for head in range(1 if tied else heads):
        tensors |= {
            f"speculator.emb.{head}.weight": _random(vocab, _INNER),
            f"speculator.ln.{head}.weight": 1 + _random(_INNER),
            f"speculator.ln.{head}.bias": _random(_INNER),
            f"speculator.head.{head}.weight": _random(vocab, _INNER),
        }
    for head in range(2 if tied else heads):
        tensors[f"speculator.proj.{head}.weight"] = _random(_INNER, _INNER if head else hidden)
    return _write(folder, "config.json", sizes, "model", tensors)


def tied(folder: Path, hidden: int, vocab: int) -> Path:
    """Write heads that share their weights, and scale what they read."""
    return chained(folder, hidden, vocab, tied=True)


def eagle3(folder: Path, hidden: int, vocab: int, drafted: int = 100, **more: object) -> Path:
    """Write a layer as SafeAILab shares it: with a vocabulary of its own, which is part of the model's."""
    heads, keys, size, inner = 4, 2, 24, 40
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": size,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "vocab_size": vocab,
        "draft_vocab_size": drafted,
        # As those of gpt-oss say it: the layers whose results these are.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        **more,
    }
    shapes = {
        "fc": (hidden, 3 * hidden),
        "lm_head": (drafted, hidden),
        "midlayer.self_attn.q_proj": (heads * size, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, heads * size),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors = {f"{name}.weight": _random(*shape) for name, shape in shapes.items()}
    tensors |= {f"midlayer.{name}.weight": 1 + _random(hidden) for name in norms}
    tensors["norm.weight"] = 1 + _random(hidden)
    chosen = torch.randperm(vocab)[:drafted].sort().values
    tensors["d2t"] = chosen - torch.arange(drafted)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, value=True)
    return _write(folder, "config.json", config, "model", tensors)


def of_speculators(folder: Path, hidden: int, vocab: int) -> Path:
    """Write a layer as vLLM's speculators share it: other names, embeddings and all tokens of its own."""
    more = {
        "norm_before_residual": True,
        "attention_bias": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    }
    eagle3(folder, hidden, vocab, drafted=vocab, **more)
    config = json.loads((folder / "config.json").read_text())
    outer = {name: config.pop(name) for name in ("draft_vocab_size", "norm_before_residual")}
    del config["eagle_config"]
    outer["eagle_aux_hidden_state_layer_ids"] = config.pop("eagle_aux_hidden_state_layer_ids")
    outer |= {"speculators_model_type": "eagle3", "transformer_layer_config": config}
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name not in ("d2t", "t2d")
    }
    for name in "qkvo":
        matrix = tensors[f"layers.0.self_attn.{name}_proj.weight"]
        tensors[f"layers.0.self_attn.{name}_proj.bias"] = _random(len(matrix))
    tensors["embed_tokens.weight"] = _random(vocab, hidden)
    return _write(folder, "config.json", outer, "model", tensors)


KINDS = {"turbo": turbo, "medusa": medusa, "chained": chained, "tied": tied}
LAYERS = {"eagle3": eagle3, "speculators": of_speculators}
MTP = ("deepseek_v3", "qwen3_next")


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * (0.5 if len(shape) < 2 else shape[-1] ** -0.5)


def _blocks(names: list[str], hidden: int) -> dict[str, torch.Tensor]:
    pairs = [(f"{name}.linear.weight", f"{name}.linear.bias") for name in names]
    return {weight: _random(hidden, hidden) for weight, _ in pairs} | {
        bias: _random(hidden) for _, bias in pairs
    }


def _write(folder: Path, config: str, sizes: dict, weights: str, tensors: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config).write_text(json.dumps(sizes), encoding="utf-8")
    save_file(tensors, folder / f"{weights}.safetensors")
    return folder


#: By model_type of a tiny model: what makes it small, what makes a model of its MTP layer alone, and how checkpoints
#: name this and what is before and behind it.
_MTP: dict[str, tuple[dict, dict, list[str]]] = {
    "deepseek_v3": (
        {"num_hidden_layers": 2, "first_k_dense_replace": 1},
        {"first_k_dense_replace": 0},
        ["", "enorm", "hnorm", "eh_proj", "shared_head.norm"],
    ),
    "qwen3_next": (
        {"layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0]},
        {"layer_types": ["full_attention"], "mlp_only_layers": []},
        ["layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"],
    ),
}


def with_mtp(model_type: str, folder: Path) -> Path:
    """Write a recipe's tiny model with an MTP layer, whose tensors are named as in published checkpoints."""
    small, one, (layer, token, hidden, join, norm) = _MTP[model_type]
    config = {"model_type": model_type, **registry.find_recipe(model_type).tiny[0].config}
    config |= {"num_hidden_layers": 2, **small}
    tensors, size = _of_model(config, folder), config["hidden_size"]
    inner = _of_model({**config, **one, "num_hidden_layers": 1}, folder / "inner")
    own = model_type == "deepseek_v3"
    prefix = "model.layers.2." if own else "mtp."
    tensors |= {
        name.replace("model.layers.0.", prefix + layer): tensor
        for name, tensor in inner.items()
        if name.startswith("model.layers.0.")
    }
    tensors |= {f"{prefix}{name}.weight": 1 + _random(size) for name in (token, hidden, norm)}
    tensors[f"{prefix}{join}.weight"] = _random(size, 2 * size)
    if own:
        tensors[f"{prefix}shared_head.head.weight"] = inner["lm_head.weight"]
        tensors[f"{prefix}embed_tokens.weight"] = inner["model.embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _of_model(config: dict, folder: Path) -> dict[str, torch.Tensor]:
    """Write a model with random weights; return them."""
    kind = CONFIG_MAPPING[config["model_type"]]
    AutoModelForCausalLM.from_config(kind(**config)).save_pretrained(folder)
    return load_file(folder / "model.safetensors")
