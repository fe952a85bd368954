# SPDX-License-Identifier: Apache-2.0
"""Linear layers add the LoRA adapter of each row, by the semantic op `Lora`: see `checkpoint.adapters`."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from qeff_zoo.checkpoint.adapters import IDS, Site, Slots
from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export import layers, ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.transforms.modules import give

_MATRICES = "lora"  # the argument that holds those of all sites


@dataclass
class _Given:
    """Inputs of the traced call.

    Args:
        ids: Adapter slot of each row.
        matrices: Matrices of each site.
    """

    ids: Any = None
    matrices: Mapping[Site, tuple[Tensor, Tensor]] = field(default_factory=dict)


def apply(
    tracing: Tracing, model: nn.Module, repeated: layers.RepeatedLayers | None, slots: Slots
) -> Tracing:
    """Add adapter slots to the linear layers of a model.

    Args:
        tracing: Tracing of the model.
        model: Model with the traced layers, changed in place.
        repeated: Repeated layers of the model.
        slots: Adapter slots, with the names of their layers.

    Returns:
        The tracing with further inputs.

    Raises:
        ExportError: The model has none of these layers.
    """
    linears = _find(model, repeated)
    sites = {site: module for site, (path, module) in linears.items() if slots.takes(path)}
    if not sites:
        have = ", ".join(dict.fromkeys(site.module for site in linears)) or "none"
        raise ExportError(
            f"{type(model).__name__} has no linear layers that adapters could change by the names "
            f"{list(slots.targets) or 'of its layers'!r}. Expected some of those in its repeated layers: {have}. "
            "Change --lora-targets, or build without --max-loras."
        )
    given = _Given()
    inputs: list[Tensor] = []
    for site, module in sites.items():
        rows, columns = _sizes(module)
        _adapt(module, site, given)
        inputs.append(torch.zeros(slots.count + 1, rows, slots.rank))
        inputs.append(torch.zeros(slots.count + 1, slots.rank, columns))
    _pass_on(tracing.module, [*sites], given)
    first = next(iter(tracing.inputs.values()))
    batch = next(iter(tracing.dynamic_shapes.values()))[0]
    names = {name: site.layer for site in sites for name in site.inputs}
    ids = torch.zeros(first.shape[0], 1, dtype=torch.int64)
    return replace(
        tracing,
        inputs={**tracing.inputs, _MATRICES: inputs, IDS: ids},
        dynamic_shapes={**tracing.dynamic_shapes, _MATRICES: [{} for _ in inputs], IDS: {0: batch}},
        input_names=[*tracing.input_names, *names, IDS],
        layers=names,
    )


def _find(model: Any, repeated: layers.RepeatedLayers | None) -> dict[Site, tuple[str, nn.Module]]:
    """Return path and module of every linear layer in the repeated layers."""
    if repeated is not None:
        path, indices = repeated.path, repeated.traced
    else:  # all of them are traced
        count = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
        layers_ = layers.find(model, count)
        if layers_ is None:
            return {}
        path, indices = layers_[0], tuple(range(count))
    sites: dict[Site, tuple[str, nn.Module]] = {}
    listed = model.get_submodule(path)
    for index in indices:
        for name, module in listed[index].named_modules():
            if isinstance(module, nn.Linear | Conv1D) and _makes_numbers(module):
                sites[Site(index, name)] = (f"{path}.{index}.{name}", module)
    return sites


def _makes_numbers(module: Any) -> bool:
    """Return whether a linear layer returns a tensor; some routers are linear layers that also choose."""
    if type(module).forward in (nn.Linear.forward, Conv1D.forward):
        return True
    with torch.no_grad():
        output = module(torch.zeros(1, _sizes(module)[0], device=module.weight.device))
    return isinstance(output, Tensor)


def _sizes(module: Any) -> tuple[int, int]:
    """Return the input and output sizes of a linear layer."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)


def _adapt(module: Any, site: Site, given: _Given) -> None:
    """Add the adapter of each row to the output of a linear layer."""
    plain = module.forward

    def forward(self: Any, x: Tensor) -> Tensor:
        added = torch.ops.qeff_zoo.lora(plain(x), x, *given.matrices[site], given.ids)
        return added  # type: ignore[no-any-return]

    give(module, forward)


def _pass_on(module: Any, sites: list[Site], given: _Given) -> None:
    """Let a module take the matrices of adapters and the slots of rows besides its own arguments."""
    plain = module.forward

    def forward(self: Any, **arguments: Any) -> Any:
        given.ids, matrices = arguments.pop(IDS), arguments.pop(_MATRICES)
        pairs = zip(matrices[::2], matrices[1::2], strict=True)
        given.matrices = dict(zip(sites, pairs, strict=True))
        rows = next(iter(arguments.values())).shape[0]
        torch._check(given.ids.shape[0] == rows)  # known from now on
        return plain(**arguments)

    # torch.export takes the arguments from the signature.
    known = inspect.signature(plain).parameters.values()
    own = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (_MATRICES, IDS))
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = inspect.Signature([first, *known, *own])  # type: ignore[attr-defined]
    give(module, forward)
