# SPDX-License-Identifier: Apache-2.0
"""Limits of sampling: probabilities in, indices of the tokens to sample from out, as transformers' warpers keep them.

Probabilities are unnormalized: the sum of all candidates is the total.
"""

import numpy as np

from qeff_zoo.runtime.program import Array

_INFORMATIVE = 100  # tokens whose entropy `top_h` limits


def largest(values: Array, count: int) -> Array:
    """Return the indices of the `count` largest values, ascending, with all that equal the least of them."""
    if count >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, -count)[-count])


def nucleus(shares: Array, top_p: float) -> Array:
    """Return the indices of the largest probabilities that reach `top_p` of the sum, ascending; at least one.

    A vocabulary is long, so it is not sorted. Negligible values are left out; the rest is binned by leading bits,
    which preserve the order; and only values in the bin of the nucleus' least value are compared one by one.
    """
    total = shares.sum(dtype=np.float64)
    # All smaller values do not add up to 1 - top_p; halved, to allow for rounding.
    indices = np.flatnonzero(shares >= (1 - top_p) * total / len(shares) / 2)
    kept = shares[indices]
    kinds = kept.view(np.uint32) >> 16
    mass = np.bincount(kinds, weights=kept)[::-1].cumsum()  # of the largest kind, of two, …
    wanted = top_p * total
    nth = min(int(mass.searchsorted(wanted)), len(mass) - 1)
    least = len(mass) - 1 - nth
    border = np.flatnonzero(kinds == least)
    border = border[np.argsort(-kept[border], kind="stable")]
    reached = (mass[nth - 1] if nth else 0) + kept[border].cumsum(dtype=np.float64)
    inside = kinds > least
    inside[border[: int(reached.searchsorted(wanted)) + 1]] = True
    return indices[inside]


def informative(scores: Array, top_h: float) -> Array:
    """Return the indices of the largest scores whose entropy is at most `top_h` of all, ascending; at least one.

    Args:
        scores: Logits after the temperature.
        top_h: Fraction of the entropy of the 100 most likely tokens.
    """
    best = largest(scores, _INFORMATIVE)
    best = best[np.argsort(-scores[best], kind="stable")][:_INFORMATIVE]
    logs = _logarithms(np.exp(scores[best] - scores[best[0]]))
    terms = -np.exp(logs) * np.where(np.isfinite(logs), logs, 0)
    inside = terms.cumsum() <= terms.sum() * top_h
    inside[0] = True
    return np.sort(best[inside])


def typical(shares: Array, typical_p: float) -> Array:
    """Return the indices of the probabilities nearest to the entropy that reach `typical_p`, ascending."""
    logs = _logarithms(shares)
    distance = np.abs(-logs - _entropy(logs))
    order = np.argsort(distance, kind="stable")
    reached = np.exp(logs[order]).cumsum()
    last = min(int((reached < typical_p).sum()), len(order) - 1)
    return np.flatnonzero(distance <= distance[order[last]])


def above(shares: Array, epsilon: float) -> Array:
    """Return the indices of probabilities of at least `epsilon`, and of the largest one."""
    return _at_least(shares, epsilon)


def above_entropy(shares: Array, eta: float) -> Array:
    """Return the indices of probabilities of at least the lower of `eta` and a value that falls with the entropy."""
    entropy = _entropy(_logarithms(shares))
    return _at_least(shares, min(eta, float(np.sqrt(eta) * np.exp(-entropy))))


def _at_least(shares: Array, least: float) -> Array:
    probabilities = shares / shares.sum(dtype=np.float64)
    return np.flatnonzero((probabilities >= least) | (shares == shares.max()))


def _logarithms(shares: Array) -> Array:
    """Return natural logarithms of normalized probabilities, -inf for 0."""
    wide = shares.astype(np.float64)
    with np.errstate(divide="ignore"):
        logarithms: Array = np.log(wide / wide.sum())
    return logarithms


def _entropy(logs: Array) -> float:
    finite = logs[np.isfinite(logs)]
    return float(-(np.exp(finite) * finite).sum())
