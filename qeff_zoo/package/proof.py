# SPDX-License-Identifier: Apache-2.0
"""Sentences on a validation, for people: agreement, its distance, and the faults that it detects."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ERROR = "max_relative_error"
_LONGEST = 1000  # of a line of an index
_UNITS = {
    "kl_divergence": "nats",
    "cosine_distance": "of cosine",
    "relative_error": "standard deviations",
    "absolute_error": "of a score",
}
#: Mean cost from which on people are warned: nats, cosine distance, or the largest difference of values.
_LARGE = {
    "kl_divergence": 0.1,
    "cosine_distance": 0.01,
    "relative_error": 1.0,
    "absolute_error": 0.1,
}


def sentences(validation: Sequence[Mapping[str, Any]], costs: Mapping[str, Any]) -> list[str]:
    """Return the sentences that a record, `inspect` and a model card show.

    Args:
        validation: Value of the manifest's `validation`.
        costs: Value of the manifest's `costs`; empty without rounding.

    Example:
        >>> sentences(manifest["validation"], manifest.get("costs", {}))  # doctest: +SKIP
        ["Computes Hugging Face's model (float32): largest error 8e-06 of the outputs' spread at 52 positions …"]
    """
    return [*_agreements(validation), *_equal_choices(validation), *_costs(costs)]


def summary(validation: Sequence[Mapping[str, Any]], costs: Mapping[str, Any]) -> str | None:
    """Return the sentences in one line, as an index keeps them; None if nothing was compared."""
    line = " ".join(sentences(validation, costs))[:_LONGEST]
    return "".join(one if one.isprintable() else "?" for one in line) or None


def warnings(costs: Mapping[str, Any], name: str, advice: str = "") -> Iterator[str]:
    """Yield what people should know before they use a package.

    Args:
        costs: Value of the manifest's `costs`.
        name: Name of the checkpoint.
        advice: Matrices that cost most, and what more bits would cost, if a build estimated them.
    """
    cost = costs.get("weights")
    if cost and (cost["mean"] is None or cost["mean"] > _LARGE[cost["metric"]]):
        yield (
            f"{name!r}: {_of_weights(cost)} The package computes that right, and the model is worse for it. Expected "
            f"at most {_LARGE[cost['metric']]} {_UNITS[cost['metric']]}. Build with more bits (--bits, --weights int8, "
            f"or --format for the matrices that matter){advice and '; by estimate: ' + advice}."
        )


def _agreements(validation: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each reference that the package was compared with."""
    checks = [check for check in validation if check["metric"] == _ERROR]
    for dtype in dict.fromkeys(check["against"]["dtype"] for check in checks):
        found = [check for check in checks if check["against"]["dtype"] == dtype]
        worst = max(found, key=lambda check: _size(check["value"]))
        positions = sum(check.get("positions", 0) for check in found)
        verb = "Computes" if all(check["passed"] for check in found) else "Does not compute"
        yield (
            f"{verb} Hugging Face's model ({dtype}): largest error {_number(worst['value'])} of the outputs' spread at "
            f"{positions} positions, {_number(worst['threshold'])} allowed{_noticed(found)}."
        )


def _noticed(checks: Sequence[Mapping[str, Any]]) -> str:
    """Name what every stage detects, by the least error of any stage."""
    errors: dict[str, list[float]] = {}
    for check in checks:
        found = [(fault["fault"], fault) for fault in check.get("faults", ())]
        if canary := check.get("canary"):
            found.append((canary["mutation"], canary))
        for words, one in found:
            if one.get("noticed", True):
                errors.setdefault(words, []).append(_size(one["value"]))
    listed = [f"{words} ({_number(min(values))})" for words, values in errors.items()]
    return f"; detects {', '.join(listed)}" if listed else ""


def _equal_choices(validation: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how often the package kept one of several experts, or keys, that have the same score."""
    counts = {
        check["stage"]: check["followed"]["equal"] for check in validation if "followed" in check
    }
    if count := sum(counts.values()):
        yield (
            f"Keeps {count} times another expert or key with exactly the same score. transformers decides these by the "
            "length of its cache, so that its cached decode may differ from its own answer to the whole text."
        )


def _costs(costs: Mapping[str, Any]) -> Iterator[str]:
    if cost := costs.get("activations"):
        unit = _UNITS[cost["metric"]]
        yield (
            f"Rounding activations to int8 costs {_mean(cost)} {unit} at {cost['positions']} positions, "
            f"{_number(cost['expected'])} expected."
        )
    if cost := costs.get("weights"):
        yield _of_weights(cost)


def _of_weights(cost: Mapping[str, Any]) -> str:
    perplexity = ""
    if cost.get("perplexity_ratio") is not None:
        ratio, error = cost["perplexity_ratio"], cost["perplexity_ratio_error"]
        perplexity = f", perplexity x {ratio:.4g} ± {error:.1g}"
    unit = _UNITS[cost["metric"]]
    return (
        f"Rounding weights costs {_mean(cost)} {unit} at {cost['positions']} positions{perplexity}."
    )


def _mean(cost: Mapping[str, Any]) -> str:
    return f"{_number(cost['mean'])} ± {_number(cost['error'], 1)}"


def _size(value: float | None) -> float:
    return float("inf") if value is None else float(value)


def _number(value: float | None, digits: int = 2) -> str:
    return "not finite" if value is None else f"{value:.{digits}g}"
