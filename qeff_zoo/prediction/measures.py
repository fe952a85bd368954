# SPDX-License-Identifier: Apache-2.0
"""How far predictions in other numerics are from those in float32, and what that means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qeff_zoo.contract.comparison import Comparison
from qeff_zoo.validation.judgement.parity import (
    Array,
    cosine_distances,
    divergences,
    relative_errors,
)

#: Of the mean divergence in nats, and of the share of answers with the same most likely token: what is good, and what
#: is poor. Between them a model is to be looked at.
GOOD_KL, GOOD_TOP1 = 0.02, 0.90
POOR_KL, POOR_TOP1 = 0.1, 0.80
#: The same of the mean cosine distance of embeddings.
GOOD_COSINE, POOR_COSINE = 1e-3, 1e-2

_OF_LOGITS = (
    f"good: mean KL <= {GOOD_KL} nats and top-1 >= {GOOD_TOP1:.0%}; poor: mean KL > {POOR_KL} or top-1 < "
    f"{POOR_TOP1:.0%}; else fair. Perplexity decides nothing: worse numerics may lower it."
)
_OF_VECTORS = f"good: mean cosine distance <= {GOOD_COSINE}; poor: > {POOR_COSINE}; else fair."


def thresholds(comparison: Comparison) -> str:
    """Return the thresholds of the verdicts in words, for the printed result."""
    return _OF_LOGITS if comparison.compares_top1 else _OF_VECTORS


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one numerics does to a model's answers, against those of Hugging Face in float32.

    Args:
        numerics: Name of the numerics.
        answers: Number of compared results.
        mean_distance: Mean Kullback-Leibler divergence of logits, in nats; cosine distance of embeddings.
        max_distance: The largest.
        max_relative_error: Largest difference of a logit, in standard deviations of its answer's logits.
        top1: Share of equal most likely tokens; None for embeddings.
        perplexity: Perplexity; None for embeddings.
        ratio: Ratio of the perplexity to Hugging Face's.
    """

    numerics: str
    answers: int
    mean_distance: float
    max_distance: float
    max_relative_error: float
    top1: float | None = None
    perplexity: float | None = None
    ratio: float | None = None

    @property
    def verdict(self) -> str:
        """good, fair or poor: see `thresholds`."""
        if self.top1 is None:
            good, poor = self.mean_distance <= GOOD_COSINE, self.mean_distance > POOR_COSINE
        else:
            good = self.mean_distance <= GOOD_KL and self.top1 >= GOOD_TOP1
            poor = self.mean_distance > POOR_KL or self.top1 < POOR_TOP1
        # What is no number is neither small nor large.
        return (
            "good" if good else "fair" if not poor and np.isfinite(self.mean_distance) else "poor"
        )


class Tally:
    """Sums up answers as they come.

    Args:
        numerics: Name of what gives them.
    """

    def __init__(self, numerics: str) -> None:
        self._numerics = numerics
        self._distances: list[Array] = []
        self._errors: list[Array] = []
        self._equal: list[Array] = []
        self._losses: list[Array] = []
        self._expected_losses: list[Array] = []

    def add(self, expected: Array, got: Array, targets: Sequence[int] | None) -> None:
        """Compare some answers.

        Args:
            expected: (answers, values), of Hugging Face's model in float32.
            got: Same shape.
            targets: Next tokens; None for embeddings.
        """
        self._errors.append(relative_errors(expected, got))
        if targets is None:
            self._distances.append(cosine_distances(expected, got))
            return
        self._distances.append(divergences(expected, got))
        self._equal.append(expected.argmax(1) == got.argmax(1))
        self._losses.append(_losses(got, targets))
        self._expected_losses.append(_losses(expected, targets))

    def figures(self) -> Figures:
        """Return what was found so far."""
        distances, errors = np.concatenate(self._distances), np.concatenate(self._errors)
        figures = Figures(
            numerics=self._numerics,
            answers=len(distances),
            mean_distance=float(distances.mean()),
            max_distance=float(distances.max()),
            max_relative_error=float(errors.max()),
        )
        if not self._equal:
            return figures
        nats = float(np.concatenate(self._losses).mean())
        expected = float(np.concatenate(self._expected_losses).mean())
        return replace(
            figures,
            top1=float(np.concatenate(self._equal).mean()),
            perplexity=float(np.exp(nats)),
            ratio=float(np.exp(nats - expected)),
        )


def _losses(logits: Array, targets: Sequence[int]) -> Array:
    """Return the negative natural logarithms of the targets' probabilities."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    losses: Array = np.log(np.exp(values).sum(1)) - values[np.arange(len(values)), list(targets)]
    return losses
