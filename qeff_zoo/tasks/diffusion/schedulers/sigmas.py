# SPDX-License-Identifier: Apache-2.0
"""Noise levels (sigmas) of a run: Karras's, exponential and beta schedules, time shifts, and times of levels."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Numbers
from qeff_zoo.tasks.diffusion.schedulers.settings import Settings

_RHO = 7.0  # exponent of Karras et al.
_BETA = 0.6  # both parameters of the beta distribution
#: Function that returns noise levels of a number of steps between the largest and the least.
Levels = Callable[[float, float, int], Numbers]


@dataclass(frozen=True, kw_only=True)
class LevelSettings(Settings):
    """Settings that choose the noise levels of a run between the largest and the least."""

    use_karras_sigmas: bool | None = False
    use_exponential_sigmas: bool | None = False
    use_beta_sigmas: bool | None = False

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        names = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
        if len(chosen := [name for name in names if getattr(self, name)]) > 1:
            yield f"Settings {' and '.join(map(repr, chosen))} exclude each other; expected one of them."

    @property
    def levels(self) -> Levels | None:
        """Function that computes the noise levels, or None for those of the spaced times."""
        if self.use_karras_sigmas:
            return _karras
        if self.use_exponential_sigmas:
            return _exponential
        return _beta if self.use_beta_sigmas else None


def respaced(
    levels: Levels, sigmas: Numbers, steps: int, bounds: tuple[float | None, float | None]
) -> Numbers:
    """Return noise levels of the steps between the first and the last of a schedule.

    Args:
        levels: Function that computes them.
        sigmas: The schedule, the largest first.
        steps: Number of steps.
        bounds: Least and largest level in place of the schedule's, if not None.
    """
    least, largest = bounds
    least = float(sigmas[-1]) if least is None else least
    largest = float(sigmas[0]) if largest is None else largest
    return levels(largest, least, steps)


def times_of(sigmas: Numbers, training: FloatArray) -> Numbers:
    """Return the times of noise levels, interpolated between the logarithms of those of the training times."""
    known, wanted = np.log(training), np.log(np.maximum(sigmas, 1e-10))
    reached = wanted - known[:, None] >= 0
    below = np.minimum(np.cumsum(reached, axis=0).argmax(axis=0), len(known) - 2)
    low, high = known[below], known[below + 1]
    weight = np.clip((low - wanted) / (low - high), 0, 1)
    times: Numbers = (1 - weight) * below + weight * (below + 1)
    return times


def with_last(sigmas: Numbers, last: float | np.float32) -> FloatArray:
    """Return noise levels in single precision, with the one after the last step."""
    return np.append(sigmas, last).astype(np.float32)


def shifted(sigmas: Any, shift: float) -> Any:
    """Return noise levels of a flow shifted towards noise by a factor."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def dynamically_shifted(sigmas: Numbers, mu: float, kind: str) -> Numbers:
    """Return noise levels of a flow shifted by a factor of the image's size.

    Args:
        sigmas: Noise levels.
        mu: Factor, or its logarithm.
        kind: "exponential" if mu is a logarithm, else "linear".
    """
    factor = math.exp(mu) if kind == "exponential" else mu
    shifted_sigmas: Numbers = factor / (factor + (1 / sigmas - 1))
    return shifted_sigmas


def stretched(sigmas: Numbers, terminal: float | None) -> Numbers:
    """Return noise levels of a flow stretched so that the last is a given one; None and 0 leave them.

    Raises:
        GenerationError: The last level is 1, as that of a single step.
    """
    if not terminal:
        return sigmas
    rest = 1 - sigmas
    if rest[-1] == 0:
        raise GenerationError(
            f"Cannot stretch the noise levels to {terminal} ('shift_terminal'): the last of {len(sigmas)} is 1."
            " Expected a lower one. Use more steps."
        )
    stretched_sigmas: Numbers = 1 - rest / (rest[-1] / (1 - terminal))
    return stretched_sigmas


def _karras(largest: float, least: float, steps: int) -> Numbers:
    first, last = largest ** (1 / _RHO), least ** (1 / _RHO)
    levels: Numbers = (first + np.linspace(0, 1, steps) * (last - first)) ** _RHO
    return levels


def _exponential(largest: float, least: float, steps: int) -> Numbers:
    levels: Numbers = np.exp(np.linspace(math.log(largest), math.log(least), steps))
    return levels


def _beta(largest: float, least: float, steps: int) -> Numbers:
    shares = np.array([_beta_quantile(float(part)) for part in 1 - np.linspace(0, 1, steps)])
    return least + shares * (largest - least)


def _beta_quantile(probability: float) -> float:
    """Return the quantile of the beta distribution, by bisection; it is symmetric."""
    if probability > 0.5:
        return 1 - _beta_quantile(1 - probability)
    low, high = 0.0, 0.5
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _beta_probability(middle) < probability else (low, middle)
    return high if probability else 0.0


def _beta_probability(value: float) -> float:
    """Return the beta distribution's probability below a value of at most one half, by its power series."""
    term, total = 1.0, 1 / _BETA
    for index in range(1, 64):
        term *= value * (index - _BETA) / index
        total += term / (_BETA + index)
    return float(value**_BETA * total * math.gamma(2 * _BETA) / math.gamma(_BETA) ** 2)
