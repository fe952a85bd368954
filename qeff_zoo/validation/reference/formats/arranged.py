# SPDX-License-Identifier: Apache-2.0
"""Tensors as a quantizer names and turns them -> tensors as transformers' model has them.

Quantizers save linear layers: in place of `Conv1D`, which holds its matrix transposed, and in place of stacked experts
and fused projections, which transformers' own conversions join under the names of older releases alone.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.pytorch_utils import Conv1D

from qeff_zoo.validation.reference.formats.files import Decoded, plain

#: An expert's layer: by today's tools, by GPTQModel until version 6, and by Defuser of experts of one matrix.
_EXPERTS = (
    re.compile(r"(?P<path>.*\.experts)\.(?P<at>\d+)\.(?P<layer>\w+)_proj\.(?P<kind>weight|bias)"),
    re.compile(
        r"(?P<path>.*\.experts)\.(?P<layer>gate_up|down)(_projs)?\.(?P<at>\d+)\.(?P<kind>weight|bias)"
    ),
    re.compile(r"(?P<path>.*)\.(?P<at>\d+)\.(?P<layer>linear)\.(?P<kind>weight)"),
)
#: What a parameter of stacked experts is made of.
_OF_STACKS = {"gate": "gate_up_proj", "up": "gate_up_proj", "gate_up": "gate_up_proj"} | {
    "down": "down_proj",
    "linear": "weight",
}
_HALF = re.compile(r"(.*)\.(gate_proj|up_proj)\.(weight|bias)")


@dataclass(frozen=True)
class Arranged:
    """A tensor made of others when transformers reads it.

    Args:
        parts: The others.
        arrange: Makes the tensor.
    """

    parts: Sequence[Any]
    arrange: Callable[..., Tensor]

    def __getitem__(self, _: Any) -> Tensor:
        return self.arrange(*(part[...] for part in self.parts)).contiguous()


def arranged(tensors: Mapping[str, Decoded], model: Any, *, halved: bool = False) -> dict[str, Any]:
    """Return the tensors of a quantized checkpoint by names, and in forms, that a model loads.

    Args:
        tensors: Decoded, by name.
        model: transformers' own.
        halved: Whether the quantizer took experts' gates and ups as halves, although the model alternates them.
    """
    modules, prefix = dict(model.named_modules()), model.base_model_prefix
    mapping, parameters = get_model_conversion_mapping(model), model.state_dict()
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converted = [
        re.compile(pattern.replace(".*.", r"\.\d+\."))
        for one in mapping
        for pattern in (one.source_patterns if getattr(one, "operations", None) else ())
    ]

    def module(path: str) -> Any:
        spelled = (path, f"{prefix}.{path}", path.removeprefix(f"{prefix}."))
        return next((modules[one] for one in spelled if one in modules), None)

    arranged_: dict[str, Any] = {}
    experts: dict[tuple[str, str], dict[tuple[int, str], Decoded]] = defaultdict(dict)
    halves: dict[tuple[str, str], dict[str, Decoded]] = defaultdict(dict)
    for name, tensor in tensors.items():
        path, _, kind = name.rpartition(".")
        half = _HALF.fullmatch(name)
        expert = _expert(rename_source_key(name, renamings, [], prefix, parameters)[0])
        if any(pattern.search(name) for pattern in converted):
            arranged_[name] = tensor
        elif expert and hasattr(module(expert["path"]), _OF_STACKS[expert["layer"]]):
            parameter = _OF_STACKS[expert["layer"]] + ("_bias" if expert["kind"] == "bias" else "")
            experts[expert["path"], parameter][int(expert["at"]), expert["layer"]] = tensor
        elif half and module(path) is None and hasattr(module(half[1]), "gate_up_proj"):
            halves[half[1], half[3]][half[2]] = tensor
        elif kind == "weight" and isinstance(module(path), Conv1D) and tensor.decode is not plain:
            arranged_[name] = Arranged([tensor], lambda matrix: matrix.T)
        else:
            arranged_[name] = tensor
    for (path, kind), two in halves.items():
        both = [two["gate_proj"], two["up_proj"]]
        arranged_[f"{path}.gate_up_proj.{kind}"] = Arranged(both, lambda *parts: torch.cat(parts))
    for (path, parameter), parts in experts.items():
        owner = module(path)
        arranged_[f"{path}.{parameter}"] = Arranged(
            [parts[at] for at in sorted(parts)],  # of each expert, gate before up
            _stack(
                turned=getattr(owner, "is_transposed", False) and not parameter.endswith("_bias"),
                pairs=any(layer == "gate" for _, layer in parts),
                mixed=not (halved or getattr(owner, "is_concatenated", True)),
            ),
        )
    return arranged_


def _expert(name: str) -> dict[str, str] | None:
    """Return the parts of the name of a tensor of an expert; None of others."""
    name = name.replace(".experts.experts.", ".experts.")
    matches = (pattern.fullmatch(name) for pattern in _EXPERTS)
    parts = next((match.groupdict() for match in matches if match), None)
    return parts if parts and parts["layer"] in _OF_STACKS else None


def _stack(*, turned: bool, pairs: bool = False, mixed: bool = False) -> Callable[..., Tensor]:
    """Return what stacks the matrices of experts.

    Args:
        turned: Whether the model has them transposed.
        pairs: Whether there are two of each expert, gate and up.
        mixed: Whether rows of these alternate.
    """

    def stack(*parts: Tensor) -> Tensor:
        whole = torch.stack(parts)
        if pairs:
            two = whole.unflatten(0, (-1, 2))  # (experts, 2, rows, ...)
            whole = (two.transpose(1, 2) if mixed else two).flatten(1, 2)
        return whole.transpose(1, 2) if turned else whole

    return stack
