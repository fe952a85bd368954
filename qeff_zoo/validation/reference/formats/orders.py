# SPDX-License-Identifier: Apache-2.0
"""In which order a model's parameters take their columns, where checkpoints store their matrices sorted.

transformers joins several tensors to one parameter, the experts of a layer for one. Its own rules name them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

#: By parameter, and number of the matrix in it: the orders of all tensors that this is made of, None for no order.
Orders: TypeAlias = Mapping[str, list[list[Tensor | None]]]


def by_parameter(model: Any, names: Iterable[str], orders: Mapping[str, Tensor]) -> Orders:
    """Find the orders of a model's parameters.

    Args:
        model: Model of transformers.
        names: Names of all tensors of the checkpoint.
        orders: Order of each tensor with sorted columns.
    """
    if not orders:
        return {}
    targets = targets_of(model, names, get_model_conversion_mapping(model))
    by_name: dict[str, dict[str | None, list[Tensor | None]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, (pattern, parameters) in targets.items():
        for parameter in parameters:
            by_name[parameter][pattern].append(orders.get(name))
    return {
        target: [list(parts) for parts in zip(*by_pattern.values(), strict=False)]
        for target, by_pattern in by_name.items()
    }


def targets_of(
    model: Any, names: Iterable[str], rules: Sequence[Any]
) -> dict[str, tuple[str | None, list[str]]]:
    """Return the parameters that each tensor of a checkpoint becomes part of, by transformers' own rules.

    Args:
        model: Model of transformers.
        names: Names of all tensors of the checkpoint.
        rules: Conversions that transformers has for the model.

    Returns:
        By tensor, in transformers' order: the pattern of the conversion that joins or cuts it (None without one), and
        names of parameters, which the model need not have.
    """
    known = model.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    results = {
        pattern: rule.target_patterns for rule in converters for pattern in rule.source_patterns
    }
    targets = {}
    for name in sorted(names, key=dot_natural_key):
        renamed, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, known
        )
        if renamed not in known and name in known:
            renamed, pattern = name, None
        first, *others = results.get(str(pattern), [renamed])
        targets[name] = (pattern, [renamed, *(renamed.replace(first, other) for other in others)])
    return targets


def order_of(orders: Orders, parameter: str, number: int) -> Tensor:
    """Return the order of a matrix, of which all parts must have the same.

    Args:
        orders: See `by_parameter`.
        parameter: Name of the parameter.
        number: Number of the matrix in it.

    Raises:
        ValueError: They have not.
    """
    first, *others = orders[parameter][number] if parameter in orders else [None]
    if first is None or any(other is None or not first.equal(other) for other in others):
        raise ValueError(f"Matrix {number} of {parameter} has no single act-order of its columns.")
    return first
