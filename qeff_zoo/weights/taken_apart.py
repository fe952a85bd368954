# SPDX-License-Identifier: Apache-2.0
"""Weights that quantizers take apart: the tensors they write -> the parameters of transformers' model.

A quantizer replaces stacked experts and fused projections by linear layers of their own, and saves those:
`experts.3.gate_proj` and `experts.3.up_proj` in place of `experts.gate_up_proj`. Which layers a parameter is made of
follows from its name and its module. Names are those that GPTQModel, AutoRound and llm-compressor write: GPTQModel's
until version 6 are `experts.gate_up.3` and `experts.gate_up_projs.3`, and Defuser's of experts of one matrix
`input_linear.3.linear`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo.checkpoint.expressions import concat, reshape, shape_of, stack, transpose
from qeff_zoo.checkpoint.types import Expression

_FUSED, _HALVES = "gate_up_proj", ("gate_proj", "up_proj")
_BIAS = "_bias"


def joined(
    model: Any,
    unbound: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, str],
    infos: Any,
    *,
    halved: bool = False,
) -> dict[str, Expression]:
    """Find what parameters are made of that no tensor has the name of.

    Args:
        model: A `PreTrainedModel`, on the meta device if need be.
        unbound: Shapes of those parameters.
        tensors: Names of unused tensors, by the names that they have in the model.
        infos: Shapes of the tensors.
        halved: See `qeff_zoo.checkpoint.formats.halves_experts`.
    """
    found: dict[str, Expression] = {}
    # An older llm-compressor has the experts in a list of its own.
    tensors = {
        place.replace(".experts.experts.", ".experts."): one for place, one in tensors.items()
    }
    for place, shape in unbound.items():
        path, _, name = place.rpartition(".")
        if path.rpartition(".")[2] == _FUSED:
            parts = _named(
                tensors, [f"{path.removesuffix(_FUSED)}{half}.{name}" for half in _HALVES]
            )
            if parts:
                found[place] = concat(0, *parts)
        elif len(shape) > 1 and _is_stacked(model.get_submodule(path), name, shape):
            module = model.get_submodule(path)
            one_by_one = halved or getattr(module, "is_concatenated", True)
            experts = list(_experts(path, name, shape[0], tensors, infos, one_by_one=one_by_one))
            if len(experts) == shape[0]:
                turned = getattr(module, "is_transposed", False) and not name.endswith(_BIAS)
                found[place] = transpose(1, 2, stack(0, *experts)) if turned else stack(0, *experts)
    return found


def _is_stacked(module: Any, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter has the matrices, or biases, of experts."""
    return hasattr(module, "is_transposed") or (name == "weight" and len(shape) == 3)


def _experts(
    path: str,
    name: str,
    count: int,
    tensors: Mapping[str, str],
    infos: Any,
    *,
    one_by_one: bool,
) -> Iterator[Expression]:
    """Yield what each expert adds to a stacked parameter, as a linear layer has it."""
    layer, end = name.removesuffix(_BIAS), "bias" if name.endswith(_BIAS) else "weight"
    short = layer.removesuffix("_proj")
    for number in range(count):
        spelled = (
            f"{number}.{layer}",
            f"{short}.{number}",
            f"{layer}s.{number}",
            f"{number}.linear",
        )
        whole = next(
            filter(None, (_named(tensors, [f"{path}.{one}.{end}"]) for one in spelled)), []
        )
        if whole:
            yield whole[0]
        elif layer == _FUSED:
            halves = _named(tensors, [f"{path}.{number}.{half}.{end}" for half in _HALVES])
            if halves:
                yield _fused(halves, infos, one_by_one=one_by_one)


def _fused(halves: list[str], infos: Any, *, one_by_one: bool) -> Expression:
    """Join gate and up: one after the other, or row by row."""
    if one_by_one:
        return concat(0, *halves)
    rows, *columns = shape_of(halves[0], infos)
    return reshape((2 * rows, *columns), stack(1, *halves))


def _named(tensors: Mapping[str, str], places: list[str]) -> list[str]:
    """Return the tensors of some places if all are there; else none."""
    return [tensors[place] for place in places] if all(one in tensors for one in places) else []
