# SPDX-License-Identifier: Apache-2.0
"""Schemes of groups of matrices within a budget of bits, so that the outputs of a model change least.

The cost of a group in the fewest bits is measured: it alone is rounded to the nearest, all else stays float32, and the
outputs are compared. Its cost in more bits is estimated: proportional to the squared error of its weights. Costs of
several groups are added up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qeff_zoo.quantizer.grids import Scheme
from qeff_zoo.quantizer.rounding import nearest


@dataclass(frozen=True, eq=False)
class Unit:
    """Matrices that share a format.

    Args:
        modules: Names of the modules in the model.
        weights: Number of weights.
        errors: Squared error of the weights, by scheme.
        cost: Distance of the outputs with the fewest bits; see `distance`.
    """

    modules: tuple[str, ...]
    weights: int
    errors: Mapping[Scheme, float]
    cost: float

    def cost_of(self, scheme: Scheme) -> float:
        """Return the estimated cost of a scheme."""
        most = self.errors[cheapest(self.errors)]
        return self.cost * self.errors[scheme] / most if most else 0.0


def cheapest(schemes: Mapping[Scheme, float] | Sequence[Scheme]) -> Scheme:
    """Return the scheme with the fewest bits."""
    return min(schemes, key=lambda one: (one.bits_per_weight, one))


def distance(expected: Tensor, answer: Tensor, *, is_decoder: bool) -> float:
    """Return how far answers are from those of the float model.

    Args:
        expected: (tokens, vocabulary) logits, or (tokens, hidden).
        answer: Likewise.
        is_decoder: Whether these are logits.

    Returns:
        The mean divergence (Kullback-Leibler) in nats; of other models the mean squared difference relative to the mean
        square.
    """
    if not is_decoder:
        return float((answer - expected).square().mean() / expected.square().mean())
    exact = expected.double().log_softmax(-1)
    rounded = answer.double().log_softmax(-1)
    return float((exact.exp() * (exact - rounded)).sum(-1).mean())


def choose(units: Sequence[Unit], bits: float) -> dict[str, Scheme]:
    """Return the scheme of every module: the change that gains most for its bits comes first, while it fits.

    Args:
        units: Matrices that are stored in integers.
        bits: Total budget in bits.
    """
    chosen = {unit: cheapest(unit.errors) for unit in units}
    left = bits - sum(scheme.bits_per_weight * unit.weights for unit, scheme in chosen.items())
    while True:
        better: list[tuple[float, int, Scheme, float]] = []
        for number, unit in enumerate(units):
            for scheme in sorted(unit.errors):
                now = chosen[unit]
                more = (scheme.bits_per_weight - now.bits_per_weight) * unit.weights
                gain = unit.cost_of(now) - unit.cost_of(scheme)
                if 0 < more <= left and gain > 0:
                    better.append((-gain / more, number, scheme, more))
        if not better:
            return {module: scheme for unit, scheme in chosen.items() for module in unit.modules}
        _, number, scheme, more = min(better)
        chosen[units[number]] = scheme
        left -= more


def squared_errors(
    weights: Tensor, schemes: Sequence[Scheme], dtype: torch.dtype
) -> dict[Scheme, tuple[float, Tensor]]:
    """Return, by scheme, the squared error of a matrix rounded to the nearest, and its values.

    Args:
        weights: (rows, columns) float32.
        schemes: Possible schemes of its columns.
        dtype: Type of scales.
    """
    even = torch.ones(weights.shape[1])
    errors = {}
    for scheme in schemes:
        values = nearest(weights, even, scheme, dtype).values
        errors[scheme] = (float((values - weights).square().sum(dtype=torch.float64)), values)
    return errors
