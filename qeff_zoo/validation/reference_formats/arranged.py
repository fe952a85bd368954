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
from transformers.pytorch_utils import Conv1D

from qeff_zoo.validation.reference_formats.files import Decoded, plain

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
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


def arranged(tensors: Mapping[str, Decoded], model: Any) -> dict[str, Any]:
    """Return the tensors of a quantized checkpoint by names, and in forms, that a model loads.

    Args:
        tensors: Decoded, by name.
        model: transformers' own.
    """
    modules, prefix = dict(model.named_modules()), f"{model.base_model_prefix}."
    converted = [
        re.compile(pattern.replace(".*.", r"\.\d+\."))
        for one in get_model_conversion_mapping(model)
        for pattern in (one.source_patterns if getattr(one, "operations", None) else ())
    ]

    def module(path: str) -> Any:
        spelled = (path, prefix + path, path.removeprefix(prefix))
        return next((modules[one] for one in spelled if one in modules), None)

    found: dict[str, Any] = {}
    experts: dict[tuple[str, str, str], dict[int, Decoded]] = defaultdict(dict)
    halves: dict[tuple[str, str], dict[str, Decoded]] = defaultdict(dict)
    for name, one in tensors.items():
        path, _, kind = name.rpartition(".")
        expert = _EXPERT.fullmatch(name.replace(".experts.experts.", ".experts."))
        half = _HALF.fullmatch(name)
        if any(pattern.search(name) for pattern in converted):
            found[name] = one
        elif expert and hasattr(module(expert[1]), "down_proj"):
            experts[expert[1], expert[3], expert[4]][int(expert[2])] = one
        elif half and module(path) is None and hasattr(module(half[1]), "gate_up_proj"):
            halves[half[1], half[3]][half[2]] = one
        elif kind == "weight" and isinstance(module(path), Conv1D) and one.decode is not plain:
            found[name] = Arranged([one], lambda matrix: matrix.T)
        else:
            found[name] = one
    for (path, kind), two in halves.items():
        parts = [two["gate_proj"], two["up_proj"]]
        found[f"{path}.gate_up_proj.{kind}"] = Arranged(parts, lambda *both: torch.cat(both))
    for path, kind in {(path, kind) for path, _, kind in experts}:
        end = "_bias" if kind == "bias" else ""
        owner, down = module(path), experts[path, "down_proj", kind]
        turned = owner.is_transposed and kind == "weight"
        found[f"{path}.down_proj{end}"] = Arranged(
            [down[at] for at in sorted(down)], _stack(turned=turned)
        )
        gate, up = experts[path, "gate_proj", kind], experts[path, "up_proj", kind]
        parts = [part for at in sorted(gate) for part in (gate[at], up[at])]
        found[f"{path}.gate_up_proj{end}"] = Arranged(
            parts, _stack(turned=turned, pairs=True, mixed=not owner.is_concatenated)
        )
    return found


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
