# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: how far answers move when weights, or activations, are rounded.

A comparison of a package with the same rounded weights does not see this cost, since both sides pay it. So it is
measured: of weights, Hugging Face's model with rounded ones against itself; of activations, the package as it ships
against Hugging Face's model without that rounding, beside a simulation of the rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.contract.comparison import LOGITS, Comparison, Distance
from qeff_zoo.validation.judgement.parity import Array, Check, Judge, shortened
from qeff_zoo.validation.reference.answers import Answers
from qeff_zoo.validation.trial.cases import ENOUGH
from qeff_zoo.validation.trial.package_runner import Trial

#: Times that a package's rounding may cost what its simulation does, at a typical position: of 4,000 right samples of
#: `ENOUGH` positions none had more than 1.82 times.
TIMES = 2.0
_DIGITS = 4  # of a cost, which no sample says to more
_ANY = -1  # run of the package: of no run of it


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a rounding, by position.

    Args:
        distance: Distance of a position; divergences are in nats.
        values: Cost at each position.
        losses: Loss of the next token at the same positions in nats, exact and rounded; None if unknown.
    """

    distance: Distance
    values: Array
    losses: tuple[Array, Array] | None = None

    @classmethod
    def between(cls, expected: Array, got: Array, comparison: Comparison) -> "Cost":
        """Return the cost of rounded answers (positions, values)."""
        return cls(distance=comparison.cost, values=comparison.cost.between()(expected, got))

    @property
    def mean(self) -> float:
        """Mean over positions."""
        return float(self.values.mean())

    def times(self, other: "Cost") -> float:
        """Return how many times another cost of the same positions this is: the geometric mean."""
        free = self.distance.negligible
        ratios = np.log(self.values + free) - np.log(other.values + free)
        return float(np.exp(ratios.mean()))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON: the mean, its standard error, and what it does to perplexity."""
        entry = {
            "metric": self.distance.metric,
            "mean": shortened(self.mean, _DIGITS),
            "error": shortened(_error(self.values), _DIGITS),
            "positions": len(self.values),
        }
        if self.losses is None:
            return entry
        more = np.subtract(*self.losses[::-1], dtype=np.float64)
        ratio = float(np.exp(more.mean()))
        return {
            **entry,
            "perplexity": shortened(float(np.exp(self.losses[1].mean(dtype=np.float64))), _DIGITS),
            "perplexity_ratio": shortened(ratio, _DIGITS),
            "perplexity_ratio_error": shortened(ratio * _error(more), _DIGITS),
        }


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a package's roundings.

    Args:
        weights: Cost of rounding weights; None if they are the checkpoint's.
        activations: Cost of rounding activations, as shipped; None without, and so `expected`.
        expected: The same, as Hugging Face's model simulates it.
        swapped: Cost of two swapped heads.
        positions: Number of different positions that were compared.
        judged: Whether the cost of activations is meaningful: not if experts or keys are chosen.
    """

    weights: Cost | None = None
    activations: Cost | None = None
    expected: Cost | None = None
    swapped: Cost | None = None
    positions: int = 0
    judged: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        entry = {"weights": self.weights.as_dict()} if self.weights else {}
        if self.activations and self.expected:
            entry["activations"] = {
                **self.activations.as_dict(),
                "expected": shortened(self.expected.mean, _DIGITS),
            }
        return entry


def measure(
    trial: Trial, shipped: Trial | None, reference: Answers, judged: str, comparison: Comparison
) -> Costs:
    """Measure what a package's roundings cost.

    Args:
        trial: Trial of the package without rounding of activations.
        shipped: Trial of the package as shipped, perhaps of some stages; None if it rounds no activations.
        reference: Answers of the reference to both.
        judged: The variant that has the package's weights.
        comparison: Comparison of the task's answers.
    """
    weights = None
    if judged != "reference":
        weights = of_losses(reference.arrays, judged) or Cost.between(
            reference.all("reference"), reference.all(judged), comparison
        )
    if shipped is None:
        return Costs(weights=weights)
    keys = [
        (number, index, _ANY) for stage in shipped.answers for number, index, _ in trial.keys[stage]
    ]
    answered = reference.answered("simulated", keys)
    got = np.concatenate([*shipped.answers.values()])[answered]
    keys = [keys[place] for place in answered]
    expected = reference.at(judged, keys)
    return Costs(
        weights=weights,
        activations=Cost.between(expected, got, comparison),
        expected=Cost.between(expected, reference.at("simulated", keys), comparison),
        swapped=Cost.between(expected, reference.at("swapped", keys), comparison),
        positions=len(set(keys)),
        judged=not reference.about["choices"]["made"],
    )


def as_shipped(costs: Costs, judge: Judge) -> list[Check]:
    """Return the check that a package rounds as expected; none where too little was compared, or it could not fail.

    Args:
        costs: Measured.
        judge: Judge of the comparison with the variant that has the package's weights.
    """
    actual, expected, swapped = costs.activations, costs.expected, costs.swapped
    if not (actual and expected and swapped and costs.judged) or costs.positions < ENOUGH:
        return []
    check = judge.as_shipped(
        (actual.times(expected), swapped.times(expected)), TIMES, positions=costs.positions
    )
    return [check] if "canary" in check else []


def of_losses(arrays: Mapping[str, Array], variant: str) -> Cost | None:
    """Return what the reference measured of a variant on one text, see `reference_losses`; None if it did not."""
    if f"divergence.{variant}" not in arrays:
        return None
    return Cost(
        distance=LOGITS.cost,
        values=arrays[f"divergence.{variant}"],
        losses=(arrays["loss.reference"], arrays[f"loss.{variant}"]),
    )


def _error(values: Array) -> float:
    """Return the standard error of a mean."""
    return float(values.std(dtype=np.float64) / len(values) ** 0.5)
