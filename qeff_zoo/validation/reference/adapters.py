# SPDX-License-Identifier: Apache-2.0
"""Adapters merged into the reference: transformers' model with them in its weights, by code of the reference's own.

Only the reference process imports this. It reads what peft saved with torch alone, and shares with what packages are
built by nothing but `Patterns`, without which a stranger's pattern could run for ever.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.pytorch_utils import Conv1D

from qeff_zoo.checkpoint.adapters.patterns import Patterns

_NAME = re.compile(r"\.default(?=\.weight$|\.bias$|$)")
_patterns = lru_cache(Patterns)
_OF_PEFT = re.compile(r"^base_model\.model\.|(?<=\.)(?:base_layer|modules_to_save)\.")


def merge(model: Any, adapters: Sequence[Mapping[str, Any]]) -> None:
    """Merge adapters into a model, in place: the base and the weighted sum of what each adds to it.

    Args:
        model: transformers' own, in float32.
        adapters: Each with its `folder` and its `weight`.

    Raises:
        ValueError: An adapter has a tensor or setting that is unsupported here.
    """
    for adapter in adapters:
        folder = Path(adapter["folder"])
        config = json.loads((folder / "adapter_config.json").read_bytes())
        stored = load_file(folder / "adapter_model.safetensors")
        saved = {_NAME.sub("", name): tensor for name, tensor in stored.items()}
        _merge_stacks(model, config, saved, adapter["weight"])
        tensors = {_OF_PEFT.sub("", name): tensor.float() for name, tensor in saved.items()}
        for name, tensor in tensors.items():
            if ".lora_" not in name:
                path, _, parameter = name.rpartition(".")
                layer = _find(model, path)
                _untie(model, layer, parameter)
                getattr(layer, parameter).data.copy_(tensor)
        modules = {name.rpartition(".lora_")[0] for name in tensors if ".lora_" in name}
        for module in sorted(modules):
            mark = f"{module}.lora_"
            own = {
                name[len(mark) :]: value for name, value in tensors.items() if name.startswith(mark)
            }
            layer = _find(model, module)
            _untie(model, layer, "weight")
            _merge_layer(layer, own, adapter["weight"] * _scaling(config, module), module)


def _untie(model: Any, layer: Any, name: str) -> None:
    """Give a layer a copy of a parameter that others share: an adapter changes the layer alone."""
    parameter = getattr(layer, name)
    every = (tensor for _, tensor in model.named_parameters(remove_duplicate=False))
    if sum(one is parameter for one in every) > 1:
        setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))


def _find(model: Any, path: str) -> nn.Module:
    """Return a module by its path, with or without the model's prefix before it."""
    modules = dict(model.named_modules())
    for known in _spelled(model, path):
        if known in modules:
            module: nn.Module = modules[known]
            return module
    raise ValueError(f"The model has no {path!r}.")


def _scaling(config: Mapping[str, Any], module: str) -> float:
    def of(table: str, usual: Any) -> Any:
        pattern = _patterns(tuple(config.get(table) or ())).first(module)
        return usual if pattern is None else config[table][pattern]

    rank, alpha = of("rank_pattern", config["r"]), of("alpha_pattern", config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _merge_stacks(
    model: Any, config: Mapping[str, Any], saved: dict[str, Tensor], weight: float
) -> None:
    """Merge what changes stacked parameters, and take it out of what was saved."""
    targets = config.get("target_parameters") or ()
    for path, module in model.named_modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        inside = [
            name
            for name in names
            if any(f".{path}.{name}".endswith(f".{target}") for target in targets)
        ]
        for depth, name in enumerate(reversed(inside)):  # the first is wrapped innermost
            wrapped = "base_layer." * depth
            known = [f"base_model.model.{one}.{wrapped}lora_" for one in _spelled(model, path)]
            mark = next(entry for entry in known if f"{entry}A.weight" in saved)
            down, up = (saved.pop(f"{mark}{side}.weight").float() for side in "AB")
            parameter = getattr(module, name)
            count = len(parameter)
            down, up = down.view(count, -1, down.shape[1]), up.view(len(up), -1, count)
            form = "ore,eri->eio" if getattr(module, "is_transposed", False) else "ore,eri->eoi"
            factor = weight * _scaling(config, f"{path}.{name}")
            parameter.data += factor * _exact(form, up, down)


def _spelled(model: Any, path: str) -> list[str]:
    """Return a module's path with and without the model's prefix before it, and as it is called by now."""
    prefix = f"{model.base_model_prefix}."
    renamings = [
        one for one in get_model_conversion_mapping(model) if isinstance(one, WeightRenaming)
    ]
    now, _ = rename_source_key(
        f"{path}.weight", renamings, [], model.base_model_prefix, model.state_dict()
    )
    return [path, prefix + path, path.removeprefix(prefix), now.removesuffix(".weight")]


def _exact(form: str, left: Tensor, right: Tensor) -> Tensor:
    """Return a product as float32, computed in float64: processors differ in float32, and so would rounded weights."""
    return torch.einsum(form, left.double(), right.double()).float()


def _merge_layer(layer: Any, own: dict[str, Tensor], factor: float, module: str) -> None:
    if "embedding_A" in own:
        product = _exact("or,ri->io", own.pop("embedding_B"), own.pop("embedding_A"))
        layer.weight.data += factor * product
    else:
        stored = layer.weight.data.T if isinstance(layer, Conv1D) else layer.weight.data
        merged = stored + factor * _exact("or,ri->oi", own.pop("B.weight"), own.pop("A.weight"))
        for name in ("magnitude_vector", "magnitude_vector.weight"):
            if name in own:
                lengths = merged.double().norm(dim=1)
                merged *= (own.pop(name) / lengths).float().unsqueeze(1)
        stored.copy_(merged)
    if "B.bias" in own:
        layer.bias.data += factor * own.pop("B.bias")
    if own:
        raise ValueError(f"Of {module!r} the adapter has {sorted(own)}.")
