# SPDX-License-Identifier: Apache-2.0
"""Comparison of a task's outputs with the reference's: distances, units of errors, and the most likely answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qeff_zoo.contract.deferred import lazy


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Distance between whole outputs, one value per row.

    Args:
        metric: Name of the distance in records.
        between: Function that returns the function of (expected, got), both (rows, values), that returns (rows,).
        negligible: Distance below which a ratio of two distances has no meaning; it is added to both.
    """

    metric: str
    between: Callable[[], Callable[[Any, Any], Any]]
    negligible: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of outputs, by their kind; the relative error of values is always compared.

    Args:
        name: Kind of output; `Option.of` names it.
        distance: Distance that is limited as well; None for the error alone.
        cost: Distance in which the cost of roundings is measured.
        compares_top1: Whether the most likely token or label of a row must agree.
        has_common_spread: Whether the unit of errors is the standard deviation of all values, for rows of one or two;
            that of each row otherwise.
    """

    name: str
    distance: Distance | None
    cost: Distance
    compares_top1: bool = False
    has_common_spread: bool = False


_DIVERGENCE = Distance(
    metric="kl_divergence",
    between=lazy("qeff_zoo.validation.judgement.parity:divergences"),
    negligible=1e-5,
)
_COSINE = Distance(
    metric="cosine_distance",
    between=lazy("qeff_zoo.validation.judgement.parity:cosine_distances"),
    negligible=1e-6,
)
#: Logits of a language model.
LOGITS = Comparison(name="logits", distance=_DIVERGENCE, cost=_DIVERGENCE, compares_top1=True)
#: Logits of tokens at their own positions, of a masked language model.
MASKED_LOGITS = Comparison(
    name="masked logits", distance=_DIVERGENCE, cost=_DIVERGENCE, compares_top1=True
)
#: Vectors.
EMBEDDINGS = Comparison(name="embeddings", distance=_COSINE, cost=_COSINE)
#: Scores of labels, perhaps of a single one.
SCORES = Comparison(
    name="scores", distance=None, cost=_DIVERGENCE, compares_top1=True, has_common_spread=True
)
#: Scores that no label names, one or two of them in a row, whose order in the row means nothing.
UNNAMED_SCORES = Comparison(
    name="unnamed scores",
    distance=None,
    cost=Distance(
        metric="absolute_error",
        between=lazy("qeff_zoo.validation.judgement.parity:absolute_errors"),
        negligible=1e-5,
    ),
    has_common_spread=True,
)
#: Arrays of measured values, such as the depth of each pixel.
VALUES = Comparison(
    name="values",
    distance=None,
    cost=Distance(
        metric="relative_error",
        between=lazy("qeff_zoo.validation.judgement.parity:relative_errors"),
        negligible=1e-5,
    ),
)
