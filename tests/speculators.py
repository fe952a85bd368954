# SPDX-License-Identifier: Apache-2.0
"""Heads that draft, with random weights, in the formats in which they are shared."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

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


KINDS = {"turbo": turbo, "medusa": medusa, "chained": chained, "tied": tied}


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
