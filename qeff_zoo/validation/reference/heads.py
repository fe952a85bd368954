# SPDX-License-Identifier: Apache-2.0
"""Draft heads as their papers define them: the reference of a package's programs `heads` and `draft`.

Only the reference process imports this. Parameters become part of Hugging Face's model, so that all variants of it are
variants of the heads too; their names are those of the package's matrices.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from qeff_zoo.validation.reference.assistant import Assistant
from qeff_zoo.validation.reference.dflash import DFlash
from qeff_zoo.validation.reference.formats.files import plain
from qeff_zoo.validation.reference.layers import DraftLayerLogits, Eagle3, Mtp, put
from qeff_zoo.validation.reference.loading import decoded_weights
from qeff_zoo.validation.trial.cases import LAYER_ANSWERS

#: Hidden states (rows, size) and tokens (rows, heads), the newest first: logits (rows, heads, vocab).
Drafting: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_PREFIX = re.compile(r"^(projections|medusa_lm_head|medusa_head|speculator)\.")


def attach(
    model: Any, located: Mapping[str, Any] | None
) -> tuple["Drafting | DraftLayerLogits | None", int]:
    """Read heads or a layer into a model; return what computes their logits, and of how many tokens for each.

    Args:
        model: Hugging Face's, in float32.
        located: Folder and files, the configuration first; None without heads.
    """
    if located is None:
        return None, 0
    folder, (config_name, *names) = Path(located["folder"]), located["files"]
    if "layer" in located:
        model.speculator = nn.Module()
        wanted = {*located["sources"].values(), *located["layer"].values()}
        return Mtp(model, located, _own_tensors(folder, located["files"], wanted)), LAYER_ANSWERS
    config = json.loads((folder / config_name).read_bytes())
    stored = {
        _PREFIX.sub("", name): tensor.float() if tensor.is_floating_point() else tensor
        for file in names
        for name, tensor in load_file(folder / file).items()
    }
    model.speculator = nn.Module()
    if layer := next((_LAYERS[key] for key in _LAYERS if key in config), None):
        return layer(model, config, stored), LAYER_ANSWERS
    key = next(key for key in _KINDS if key in config)
    heads = int(config[key])
    return _KINDS[key](model, config, stored, heads), heads


def _own_tensors(folder: Path, files: Sequence[str], wanted: set[str]) -> dict[str, Tensor]:
    """Read tensors of a model's checkpoint, in float32."""
    if decoded := decoded_weights(folder):
        known = wanted & {*decoded.tensors}  # scales of others are not
        return {name: plain(decoded.tensors[name][:]) for name in known}
    tensors: dict[str, Tensor] = {}
    for file in files:
        with safe_open(folder / file, "pt") as opened:
            tensors |= {name: plain(opened.get_tensor(name)) for name in wanted & {*opened.keys()}}
    return tensors


def _plain(*_: int) -> nn.Module:
    return nn.Module()


def _projections(model: Any, stored: Mapping[str, Tensor], heads: int, layers: int) -> Drafting:
    """Compute x + silu(Wx + b) once for each layer; of the result, the model's matrix or a head's own makes logits."""
    linears: list[list[Any]] = []
    own: list[Any] = []
    for head in range(heads):
        linears.append([])
        for layer in range(layers):
            there = layer if f"{head}.{layer}.linear.weight" in stored else 0
            name = f"{head}.{layer}.linear"
            for kind in ("weight", "bias"):
                module = put(model, f"{name}.{kind}", stored[f"{head}.{there}.linear.{kind}"])
            linears[-1].append(module)
        if (last := f"{head}.{layers}.weight") in stored:
            own.append(put(model, last, stored[last]))

    def draft(hidden: Tensor, _: Tensor) -> Tensor:
        logits = []
        for head in range(heads):
            state = hidden
            for linear in linears[head]:
                state = state + functional.silu(linear(state))
            logits.append((own[head] if own else model.get_output_embeddings())(state))
        return torch.stack(logits, 1)

    return draft


def _turbo(model: Any, config: Any, stored: Mapping[str, Tensor], heads: int) -> Drafting:
    return _projections(model, stored, heads, config["turbo_num_layers"])


def _medusa(model: Any, config: Any, stored: Mapping[str, Tensor], heads: int) -> Drafting:
    return _projections(model, stored, heads, config["medusa_num_layers"])


def _chained(model: Any, config: Any, stored: Mapping[str, Tensor], heads: int) -> Drafting:
    """Compute a state from that of the head before and the token that this drafted."""
    inner = config["inner_dim"] or config["emb_dim"]
    kinds: Mapping[str, Any] = {
        "emb": nn.Embedding,
        "proj": nn.Linear,
        "head": nn.Linear,
        "ln": _plain,
    }
    parts: list[dict[str, Any]] = [{} for _ in range(heads)]
    for head, (part, kind) in product(range(heads), kinds.items()):
        name = f"{part}.{head}"
        if f"{name}.weight" not in stored:  # tied: one module, under the names of all
            shared = parts[head][part] = parts[head - 1][part]
            model.speculator.get_submodule(part).add_module(str(head), shared)
        for parameter in ("weight", "bias"):
            if (tensor := stored.get(f"{name}.{parameter}")) is not None:
                parts[head][part] = put(model, f"{name}.{parameter}", tensor, kind)
    of_state = 0.5 ** (0.5 / heads)
    of_token = math.sqrt((1 - of_state**2) * (inner / 2))

    def norm(values: Tensor) -> Tensor:
        return values / torch.sqrt((values * values).mean(-1, keepdim=True) + 1e-6)

    def draft(hidden: Tensor, tokens: Tensor) -> Tensor:
        state = norm(hidden) / 2**0.5 if config.get("scale_input") else hidden
        logits = []
        for number, part in enumerate(parts):
            state = part["proj"](state) + part["emb"](tokens[:, number]) * (of_token / of_state)
            state = functional.gelu(norm(state) * part["ln"].weight + part["ln"].bias)
            logits.append(part["head"](state))
        return torch.stack(logits, 1)

    return draft


#: By a member of the configuration, for heads that which says how many there are.
_KINDS: Mapping[str, Callable[[Any, Any, Mapping[str, Tensor], int], Drafting]] = MappingProxyType(
    {"turbo_num_heads": _turbo, "medusa_num_heads": _medusa, "n_predict": _chained}
)
_LAYERS: Mapping[str, Callable[[Any, Any, Mapping[str, Tensor]], DraftLayerLogits]] = (
    MappingProxyType(
        {"dflash_config": DFlash, "draft_vocab_size": Eagle3, "backbone_hidden_size": Assistant}
    )
)
