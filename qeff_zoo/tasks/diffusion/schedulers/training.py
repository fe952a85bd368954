# SPDX-License-Identifier: Apache-2.0
"""Noise of the training times: the share of the image and the noise level at each, from a schedule of betas."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, exp, single
from qeff_zoo.tasks.diffusion.schedulers.settings import Settings

_MAX_BETA = 0.999
#: Most training times that are computed, a thousand times as many as published ones.
MOST_TIMES = 1_000_000
#: Share of the image at the last time in place of 0, so that its noise level is finite.
_LEAST_SHARE = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class BetaSettings(Settings):
    """Settings of the training times and their betas."""

    num_train_timesteps: int = 1000
    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: Literal[
        "linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", "laplace", "exp"
    ] = "linear"
    trained_betas: tuple[float, ...] | None = None

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        count, betas = self.num_train_timesteps, self.trained_betas
        if not 1 <= count <= MOST_TIMES:
            yield f"Setting 'num_train_timesteps' is {count}; expected 1 to {MOST_TIMES}."
        if betas is not None and len(betas) != count:
            yield f"Setting 'trained_betas' has {len(betas)} values; expected {count}, one for each training time."
        for name, value in (("beta_start", self.beta_start), ("beta_end", self.beta_end)):
            if not 0 < value < 1:
                yield f"Setting {name!r} is {value}; expected a number between 0 and 1."


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(BetaSettings):
    """Settings of the training times, with the schedules of betas of most schedulers."""

    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"


def image_shares(settings: BetaSettings, *, zero_snr: bool = False) -> FloatArray:
    """Return the cumulative product of 1 - beta at each training time (diffusers' `alphas_cumprod`).

    Args:
        settings: Settings of the training times.
        zero_snr: Whether betas are rescaled so that the last time has no image.
    """
    shares = _products(np.float32(1) - _betas(settings))
    return _products(_without_image_at_end(shares)) if zero_snr else shares


def noise_levels(shares: FloatArray) -> FloatArray:
    """Return the noise level (sigma) at each training time: noise in proportion to the image."""
    with np.errstate(divide="ignore", over="ignore"):  # infinite where no image is left
        return single(np.sqrt((1 - shares) / shares))


def with_least_share(shares: FloatArray) -> FloatArray:
    """Return shares whose last is above 0, so that all noise levels are finite."""
    return np.append(shares[:-1], np.float32(_LEAST_SHARE))


def linspace(start: float, end: float, count: int) -> FloatArray:
    """Return evenly spaced numbers with the bits of `torch.linspace`: its second half counts back from the end."""
    if count == 1:
        return np.array([start], np.float32)
    first, last = np.float32(start), np.float32(end)
    width = np.float64((last - first) / np.float32(count - 1))
    index = np.arange(count)
    ascending = np.float64(first) + width * index
    descending = np.float64(last) - width * (count - 1 - index)
    return np.where(index < count // 2, ascending, descending).astype(np.float32)


def _betas(settings: BetaSettings) -> FloatArray:
    count, start, end = settings.num_train_timesteps, settings.beta_start, settings.beta_end
    if settings.trained_betas is not None:
        return np.array(settings.trained_betas, np.float32)
    match settings.beta_schedule:
        case "linear":
            return linspace(start, end, count)
        case "scaled_linear":
            return single(linspace(start**0.5, end**0.5, count) ** 2)
        case "sigmoid":
            shares = 1 / (1 + exp(-linspace(-6, 6, count)))
            return single(shares * (end - start) + start)
        case "laplace":
            return _betas_of(_laplace_share, count)
        case "exp":
            return _betas_of(lambda time: math.exp(-12.0 * time), count)
        case "squaredcos_cap_v2":
            return _betas_of(_cosine_share, count)


def _cosine_share(time: float) -> float:
    return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2


def _laplace_share(time: float) -> float:
    level = -0.5 * math.copysign(1, 0.5 - time) * math.log(1 - 2 * math.fabs(0.5 - time) + 1e-6)
    return math.sqrt(math.exp(level) / (1 + math.exp(level)))


def _betas_of(share: Callable[[float], float], count: int) -> FloatArray:
    """Return betas whose cumulative products are a function of time, from 0 to 1."""
    values = [share(index / count) for index in range(count + 1)]
    betas = [min(1 - later / earlier, _MAX_BETA) for earlier, later in pairwise(values)]
    return np.array(betas, np.float32)


def _products(alphas: FloatArray) -> FloatArray:
    """Return cumulative products; they are accumulated in double precision, as torch does."""
    return single(np.cumprod(alphas.astype(np.float64)))


def _without_image_at_end(shares: FloatArray) -> FloatArray:
    """Return alphas whose products are shifted and scaled: 0 at the last time, unchanged at the first."""
    roots = np.sqrt(shares)
    first, last = roots[0], roots[-1]
    roots = (roots - last) * (first / (first - last))
    shares = roots**2
    alphas = np.append(shares[:1], shares[1:] / shares[:-1])
    return np.float32(1) - (
        np.float32(1) - alphas
    )  # diffusers keeps betas: the rounding of 1 - beta is part of it
