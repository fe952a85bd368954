# SPDX-License-Identifier: Apache-2.0
"""In which order a model's parameters take their columns, where checkpoints store their matrices sorted.

transformers joins several tensors to one parameter, the experts of a layer for one. Its own rules say which they are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
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
        model: Of transformers.
        names: Of all tensors of the checkpoint.
        orders: Of those with sorted columns, the column at each place.
    """
    if not orders:
        return {}
    rules, parameters = get_model_conversion_mapping(model), model.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    targets = {
        pattern: rule.target_patterns for rule in converters for pattern in rule.source_patterns
    }
    found: dict[str, dict[str | None, list[Tensor | None]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(names, key=dot_natural_key):
        renamed, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, parameters
        )
        first, *others = targets.get(str(pattern), [renamed])
        for target in (renamed, *(renamed.replace(first, other) for other in others)):
            found[target][pattern].append(orders.get(name))
    return {
        target: [list(parts) for parts in zip(*by_pattern.values(), strict=False)]
        for target, by_pattern in found.items()
    }


def order_of(orders: Orders, parameter: str, number: int) -> Tensor:
    """Return the order of a matrix, of which all parts must have the same.

    Args:
        orders: See `by_parameter`.
        parameter: Its name.
        number: Of the matrix in it.

    Raises:
        ValueError: They have not.
    """
    first, *others = orders[parameter][number] if parameter in orders else [None]
    if first is None or any(other is None or not first.equal(other) for other in others):
        raise ValueError(
            f"Matrix {number} of {parameter} has no columns in one order of their own."
        )
    return first
