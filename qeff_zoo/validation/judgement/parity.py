# SPDX-License-Identifier: Apache-2.0
"""How far two answers lie apart, how far they may, and the verdict.

Thresholds are multiples of a noise floor: the distance between answers of the reference that are
equally right (see `qeff_zoo.validation.reference.process`). The table below only bounds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.contract.comparison import Comparison
from qeff_zoo.package.manifest import holds

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = dict[str, Any]
_FAR = 20.0  # a difference of logits whose exponential is large


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What agreement means for weights stored in one way.

    Args:
        factor: Multiple of the noise floor that is allowed.
        least: Relative error that is always allowed: a lower floor was measured on too little.
        most: Relative error that is never allowed: a higher floor is no noise, and where rounding alone takes answers
            further apart, a comparison with what is not rounded judges nothing.
    """

    factor: float
    least: float
    most: float


#: The one table, by what sets the package's arithmetic apart from the reference's: other sums alone, other kernels,
#: float16, or what keys and values are rounded to.
TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "fp32": Tolerance(factor=8, least=1e-5, most=1e-2),
        # Kernels of integers, given what they need not round: they add their blocks one by one, in float32.
        "parts": Tolerance(factor=16, least=1e-4, most=1e-2),
        # Kernels of floats, on weights that they dequantize to float16.
        "dequantized": Tolerance(factor=16, least=2e-3, most=2e-2),
        # In float16, sums too; transformers in float16 sums in float32.
        "fp16": Tolerance(factor=8, least=2e-3, most=0.5),
        # Two roundings lie 1.4 times as far apart as one lies from none.
        "mxint8": Tolerance(factor=3, least=1e-3, most=1),
    }
)


@dataclass(frozen=True)
class Threshold:
    """A bound, and what decided it.

    Args:
        value: The bound.
        decided_by: "noise-floor", or the tolerance's "least" or "most"; "exact" for what is not measured.
    """

    value: float
    decided_by: str


@dataclass(frozen=True)
class Canary:
    """A reference that is wrong on purpose, which a stage must notice.

    Args:
        mutation: Description of the damage.
        answers: Answers of the damaged reference in a stage.
        faults: Answers with each fault that the stage is there for, by its words.
        rows: Places of the questions that it answered; None for all.
    """

    mutation: str
    answers: Array
    faults: Mapping[str, Array] = field(default_factory=dict)
    rows: Sequence[int] | None = None

    def of(self, values: Array) -> Array:
        """Return the rows that it answered, of a value for each question."""
        return values if self.rows is None else values[list(self.rows)]


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Distances between answers that are equally right, the largest of all positions.

    Args:
        error: See `relative_errors`.
        divergence: Distance of the task's `Comparison`; 0 without one.
        spread: Standard deviation of all scores, for scores, of which an answer may have one or two.
    """

    error: float
    divergence: float
    spread: float | None = None


def relative_errors(expected: Array, got: Array, spread: float | None = None) -> Array:
    """Return per row the largest difference, in units of the spread of the expected values.

    Args:
        expected: (rows, values).
        got: Same shape.
        spread: None for the standard deviation of each row.
    """
    spread = expected.std(axis=1, dtype=np.float64) if spread is None else np.float64(spread)
    largest = np.abs(expected - got).max(axis=1).astype(np.float64)
    errors: Array = largest / np.maximum(spread, np.finfo(np.float32).tiny)
    return errors


def absolute_errors(expected: Array, got: Array) -> Array:
    """Return per row the largest difference."""
    errors: Array = np.abs(expected - got).max(axis=1).astype(np.float64)
    return errors


def divergences(expected: Array, got: Array) -> Array:
    """Return per row the Kullback-Leibler divergence of the predictions, expected from got, in nats.

    It is log E exp(d) - E d, with the differences d of the logits, less a mean, and their mean E by the expected
    probabilities. No two large numbers are subtracted, so that values may stay in float32 and sums alone are wider.
    """
    moved = got - expected
    if np.abs(moved).max(initial=0) > _FAR:
        left, right = _log_softmax(expected), _log_softmax(got)
        far: Array = np.maximum(0, (np.exp(left) * (left - right)).sum(axis=1))
        return far
    weights = np.exp(expected - expected.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)

    def mean(values: Array) -> Array:
        means: Array = (weights * values).sum(axis=1, dtype=np.float64)
        return means

    moved -= mean(moved)[:, None].astype(moved.dtype)
    divergence: Array = np.maximum(0, np.log1p(mean(np.expm1(moved))) - mean(moved))
    return divergence


def cosine_distances(expected: Array, got: Array) -> Array:
    """Return per row one minus the cosine."""
    left, right = _normalized(expected), _normalized(got)
    # Half the squared chord: exact where one minus a product would cancel.
    distances: Array = np.square(left - right).sum(axis=1) / 2
    return distances


def in_common(answers: Sequence[Array], others: Sequence[Array]) -> tuple[Array, Array]:
    """Return the answers to the questions that two variants answered, one of which may have read beginnings alone.

    Args:
        answers: Answers of a variant, by sequence.
        others: Answers of another.
    """
    pairs = [
        (answer[: len(other)], other[: len(answer)])
        for answer, other in zip(answers, others, strict=True)
    ]
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return first, second


def measure_floor(pairs: Sequence[tuple[Array, Array]], comparison: Comparison) -> Floor:
    """Measure how far equally right answers lie apart.

    Args:
        pairs: Answers to the same questions.
        comparison: Comparison of the task's answers.
    """
    common = comparison.has_common_spread
    spread = float(pairs[0][0].astype(np.float64).std()) if common else None
    between = comparison.distance and comparison.distance.between()
    return Floor(
        error=max(float(relative_errors(*pair, spread).max()) for pair in pairs),
        divergence=max(float(between(*pair).max()) for pair in pairs) if between else 0.0,
        spread=spread,
    )


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Compares answers with one reference.

    Args:
        level: Level of the validation.
        tolerance: Entry of `TOLERANCES`.
        floor: Measured.
        against: The reference, as in the manifest.
        comparison: Comparison of the task's answers.
    """

    level: str
    tolerance: Tolerance
    floor: Floor
    against: Mapping[str, Any]
    comparison: Comparison

    @property
    def decides(self) -> bool:
        """Whether so much noise leaves anything to judge."""
        return self.tolerance.factor * self.floor.error <= self.tolerance.most

    @property
    def allowed_error(self) -> Threshold:
        """Threshold of the relative error."""
        return allowed(self.tolerance, self.floor.error)

    @property
    def allowed_divergence(self) -> Threshold:
        """Threshold of the divergence, which grows with the square of the error."""
        bounds = self.tolerance
        measured = bounds.factor**2 * self.floor.divergence
        return _bounded(measured, bounds.least**2, bounds.most**2)

    def judge(self, stage: str, expected: Array, got: Array, canary: Canary) -> list[Check]:
        """Return the checks of one stage, each with its verdict.

        The most likely tokens are not compared where noise decides at every position which they are: that they agree
        would prove nothing.

        Args:
            stage: Name of the stage.
            expected: The reference's answers.
            got: The package's.
            canary: The damaged reference.
        """
        both = (expected, got), (canary.of(expected), canary.answers)
        errors = [self.error(*pair) for pair in both]
        limits = [("max_relative_error", "<=", self.allowed_error, errors)]
        if distance := self.comparison.distance:
            between = distance.between()
            apart = [float(between(*pair).max()) for pair in both]
            limits.append((f"max_{distance.metric}", "<=", self.allowed_divergence, apart))
        mutation = canary.mutation
        checks = [self._check(stage, *limit, mutation, positions=len(expected)) for limit in limits]
        if canary.faults:
            checks[0]["faults"] = [
                self._fault(words, self.error(expected, answers), checks[0])
                for words, answers in canary.faults.items()
            ]
        if not self.comparison.compares_top1 or expected.shape[1] == 1:
            return checks
        clear = self._clear(expected)
        if not clear.any():
            checks[0]["note"] = "every position is too close to call, so no token is compared"
            return checks
        agreed = "top1_agreement", ">=", Threshold(1.0, "exact")
        damaged = canary.of(clear)
        shares = [
            _agreement(expected, got, clear),
            _agreement(*both[1], damaged) if damaged.any() else 1.0,
        ]
        check = self._check(stage, *agreed, shares, mutation, positions=int(clear.sum()))
        note = f"{int((~clear).sum())} of {len(clear)} positions are too close to call"
        return [*checks, {**check, "note": note}]

    def drawn(self, stage: str, got: Array, tokens: Array, canary: Canary) -> Check:
        """Return the check that a program's greedy tokens follow its own logits, and not the canary's.

        Args:
            stage: Name of the stage.
            got: The package's answers.
            tokens: Tokens that it returned for them.
            canary: The damaged reference.
        """
        both, exact = (got, canary.answers), Threshold(1.0, "exact")
        agreed = [float((one.argmax(axis=1) == tokens).mean()) for one in both]
        values = "drawn_tokens", ">=", exact, agreed, canary.mutation
        check = self._check(stage, *values, positions=len(tokens))
        return {
            **check,
            "note": "tokens that the program drew, by the logits that it drew them from",
        }

    @staticmethod
    def _fault(words: str, error: float, check: Check) -> dict[str, Any]:
        """Return what a fault would have measured, and whether the check would have failed."""
        value = shortened(error)
        noticed = not holds(value, check["op"], check["threshold"])
        return {"fault": words, "value": value, "noticed": noticed}

    def error(self, expected: Array, got: Array) -> float:
        """Return the largest relative error of any row."""
        return float(relative_errors(expected, got, self.floor.spread).max())

    def _clear(self, expected: Array) -> Array:
        """Return for every row whether noise cannot change the most likely token or label."""
        second, first = np.partition(expected, -2, axis=1)[:, -2:].T
        # Noise may raise one logit and lower the other.
        spread = self.floor.spread or expected.std(axis=1)
        clear: Array = first - second > 2 * max(self.floor.error, self.tolerance.least) * spread
        return clear

    def _check(
        self,
        stage: str,
        metric: str,
        op: str,
        threshold: Threshold,
        values: Sequence[float],
        mutation: str,
        *,
        positions: int,
    ) -> Check:
        """Judge what the package, and what the damaged reference, measured."""
        value, canary = values
        check: Check = {
            "level": self.level,
            "stage": stage,
            "metric": metric,
            "value": shortened(value),
            "op": op,
            "threshold": shortened(threshold.value),
            "threshold_from": threshold.decided_by,
            "positions": positions,
            "against": dict(self.against),
        }
        check["passed"] = holds(check["value"], op, check["threshold"])
        if not holds(shortened(canary), op, check["threshold"]):
            check["canary"] = {"mutation": mutation, "value": shortened(canary), "failed": True}
        return check

    def as_shipped(self, times: tuple[float, float], most: float, *, positions: int) -> Check:
        """Return the check that a package's roundings move answers as far as their simulation does.

        Args:
            times: Factors of that distance: of the package, and of two swapped heads.
            most: Maximum allowed.
            positions: Number of compared positions.
        """
        bound = Threshold(most, "most")
        return self._check(
            "as_shipped",
            "rounding_over_expected",
            "<=",
            bound,
            times,
            "two heads swapped",
            positions=positions,
        )

    def uncaught(self, stage: str, expected: Array, canary: Canary) -> Check:
        """Return a check that fails, for a stage of which no check notices the canary."""
        error = self.error(canary.of(expected), canary.answers)
        return {
            "level": self.level,
            "stage": stage,
            "metric": "canary_relative_error",
            "value": shortened(error),
            "op": ">=",
            "threshold": shortened(max(2 * self.allowed_error.value, 2 * error)),
            "threshold_from": self.allowed_error.decided_by,
            "positions": len(expected),
            "passed": False,
            "note": f"nothing in this stage notices {canary.mutation}, so passing it proves nothing",
            "against": dict(self.against),
        }


def allowed(tolerance: Tolerance, noise: float) -> Threshold:
    """Return the error that a comparison allows.

    Args:
        tolerance: Entry of `TOLERANCES`.
        noise: The largest error between answers that are equally right.
    """
    return _bounded(tolerance.factor * noise, tolerance.least, tolerance.most)


def _bounded(value: float, least: float, most: float) -> Threshold:
    """Keep a threshold between its bounds; a noise that is not a number allows nothing."""
    if not math.isfinite(value) or value < least:
        return Threshold(least, "least")
    return Threshold(most, "most") if value > most else Threshold(value, "noise-floor")


def _agreement(expected: Array, got: Array, clear: Array) -> float:
    """Return how often the most likely token or label is the expected one, of the rows that are clear."""
    return float((expected.argmax(axis=1) == got.argmax(axis=1))[clear].mean())


def shortened(value: float, digits: int = 6) -> float | None:
    """Return a number with as many digits as mean something; None for what is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _normalized(vectors: Array) -> Array:
    wide = vectors.astype(np.float64)
    scaled: Array = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-300)
    return scaled
