# SPDX-License-Identifier: Apache-2.0
"""How many modules a transform must change, as an expression over the config, and whether it may change them at all.

Counted on transformers' own modules, built without weights from several configurations: an expression is taken only if
it holds for all of them. A norm is tried: the semantic op must compute what its module computes.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

from qeff_zoo.recipe import Recipe, sparse_layers
from qeff_zoo.scaffold.shrinking import DEPTHS, PERIODS

_LAYERS = "config.num_hidden_layers"
_WIDTH = 24  # what a norm without a weight is tried on


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A transform that a recipe must declare.

    Args:
        name: Name of the transform and of its constructor in `qeff_zoo.recipe`.
        source: The constructor's call.
        offset: Added to norm weights.
        points: Parsed configurations, and the count for each.
    """

    name: str
    source: str
    offset: float = 0.0
    points: tuple[tuple[Any, int], ...]


def count(configs: Sequence[Mapping[str, Any]], task: str) -> tuple[list[Counted], list[str]]:
    """Count what transforms can change.

    Args:
        configs: Raw configurations of one model_type, the smallest first.
        task: Hub pipeline tag.

    Returns:
        The transforms to declare, and notes on what cannot be declared.
    """
    from qeff_zoo.export import loader
    from qeff_zoo.export.transforms.modules import language_model

    models = [language_model(loader.build_meta(config, task)) for config in configs]
    notes: list[str] = []
    counted: list[Counted] = []
    norms = _norms(models[0])
    offsets = {name: _offset(norm) for name, norm in norms.items()}
    telling = {name for name in offsets if _has_weight(norms[name]) or offsets[name] is None}
    common = {offsets[name] for name in telling or offsets}
    if len(common) == 1 and (offset := common.pop()) is not None:
        counted += _declare("rms_norm", models, _is_norm, notes, offset)
    elif offsets:
        notes.append(
            f"rms_norm is not declared: {', '.join(offsets)} computes something else than its semantic op."
        )
    counted += _declare("experts", models, _is_experts, notes)
    counted += _declare("recurrence", models, _is_recurrent, notes)
    return counted, notes


def promises(recipe: Recipe, counted: Sequence[Counted]) -> bool:
    """Whether a recipe's transforms are exactly the counted ones."""
    declared = {transform.name: transform for transform in recipe.transforms}
    return set(declared) == {item.name for item in counted} and all(
        declared[item.name].count(config) == number
        and declared[item.name].parameters.get("offset", 0.0) == item.offset
        for item in counted
        for config, number in item.points
    )


def _is_norm(module: Any) -> bool:
    return type(module).__name__.endswith("RMSNorm")


def _is_experts(module: Any) -> bool:
    return hasattr(module, "_is_expert_parallel")


def _is_recurrent(module: Any) -> bool:
    from qeff_zoo.export.transforms.recurrence import kernels_of

    return bool(kernels_of(module))


def _has_weight(norm: Any) -> bool:
    return norm._parameters.get("weight") is not None


def _norms(model: Any) -> dict[str, Any]:
    return {type(module).__name__: module for module in model.modules() if _is_norm(module)}


def _offset(norm: Any) -> float | None:
    """Return what a norm adds to its weight, by trying; None if it computes something else."""
    import torch

    from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)

    epsilon = getattr(norm, "eps", None) or getattr(norm, "variance_epsilon", None)
    if not isinstance(epsilon, float):
        return None
    real = copy.deepcopy(norm).to_empty(device="cpu")
    random = torch.Generator().manual_seed(0)
    width = norm.weight.shape[-1] if _has_weight(norm) else _WIDTH
    weight = torch.randn(width, generator=random) if _has_weight(norm) else torch.ones(width)
    with torch.no_grad():
        if _has_weight(norm):
            real.weight.copy_(weight)
        x = torch.randn(2, 3, width, generator=random)
        try:
            expected = real(x)
        except TypeError:  # it wants more than hidden states
            return None
        for offset in (0.0, 1.0):
            computed = torch.ops.qeff_zoo.rms_norm(x, weight, epsilon, offset)
            if torch.allclose(computed, expected, rtol=1e-4, atol=1e-5):
                return offset
    return None


def _declare(
    name: str,
    models: Sequence[Any],
    counts: Callable[[Any], bool],
    notes: list[str],
    offset: float = 0.0,
) -> list[Counted]:
    """Declare a transform where there are modules for it and an expression for their number."""
    numbers = [sum(map(counts, model.modules())) for model in models]
    if not any(numbers):
        return []
    texts = [model.config.get_text_config() for model in models]
    points = tuple((config, number) for config, number in zip(texts, numbers, strict=True))
    if name == "experts" and all(sparse_layers(config) == number for config, number in points):
        return [Counted(name=name, source="experts()", points=points)]
    expression = _fit(points)
    if expression is None:
        expression = str(numbers[0])
        notes.append(
            f"The count of {name} is {numbers} in turn; write the expression over the config that gives it."
        )
    more = f", offset={offset}" if offset else ""
    source = f"{name}(lambda config: {expression}{more})"
    return [Counted(name=name, source=source, offset=offset, points=points)]


def _fit(points: Sequence[tuple[Any, int]]) -> str | None:
    """Find the simplest expression over the config that gives every count."""
    terms = dict(_terms(points[0][0]))
    for term, factor in [("", 0), *product(terms, (1, -1, 2, 3, 4, 5, 6))]:
        values = [factor * terms[term](config) if term else 0 for config, _ in points]
        for a, b in product(range(9), range(4)):
            totals = [
                a * config.num_hidden_layers + value + b
                for (config, _), value in zip(points, values, strict=True)
            ]
            if totals == [number for _, number in points]:
                return _write([(a, _LAYERS), (factor, term), (b, "")])
    return None


def _terms(config: Any) -> Iterator[tuple[str, Callable[[Any], int]]]:
    """List what else than the number of layers a count may depend on."""
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        for kind in dict.fromkeys(getattr(config, name, None) or ()):
            text = f'config.{name}.count("{kind}")'
            yield text, partial(_occurrences, name=name, kind=kind)
    for name in DEPTHS:
        if getattr(config, name, None) is not None:
            yield f"config.{name}", attrgetter(name)
    for name in PERIODS:
        if (getattr(config, name, None) or 1) > 1:
            yield f"config.num_hidden_layers // config.{name}", partial(_whole_periods, name=name)
    if getattr(config, "mlp_only_layers", None):
        yield "len(config.mlp_only_layers)", lambda config: len(config.mlp_only_layers)


def _occurrences(config: Any, *, name: str, kind: str) -> int:
    return int(getattr(config, name).count(kind))


def _whole_periods(config: Any, *, name: str) -> int:
    return int(config.num_hidden_layers // getattr(config, name))


def _write(summands: Sequence[tuple[int, str]]) -> str:
    text = ""
    for factor, name in summands:
        if factor and name:
            term = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
        elif factor:
            term = str(abs(factor))
        else:
            continue
        sign = " - " if factor < 0 else " + "
        text += (sign if text else sign.strip().strip("+")) + term
    return text
