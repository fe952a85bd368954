# SPDX-License-Identifier: Apache-2.0
"""Heun's method over noise levels: every step but the last calls the denoiser twice, and takes the mean slope."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.euler import VarianceExploding
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Numbers, Run, single
from qeff_zoo.tasks.diffusion.schedulers.sigmas import LevelSettings, respaced, times_of
from qeff_zoo.tasks.diffusion.schedulers.spacing import Spacing, spaced
from qeff_zoo.tasks.diffusion.schedulers.training import BetaSettings, image_shares, noise_levels


@dataclass(frozen=True, kw_only=True)
class HeunSettings(BetaSettings, LevelSettings):
    """Settings of diffusers' `HeunDiscreteScheduler`."""

    beta_start: float = 0.00085
    beta_end: float = 0.012
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2", "exp"] = "linear"
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    clip_sample: bool = False
    clip_sample_range: float = 1.0
    timestep_spacing: Spacing = "linspace"
    steps_offset: int = 0


class HeunScheduler(VarianceExploding):
    """Heun's method; calls alternate between a step's own level and the next."""

    def __init__(self, settings: HeunSettings, run: Run) -> None:
        run.refuse_sigmas("HeunDiscreteScheduler")
        count, levels = settings.num_train_timesteps, noise_levels(image_shares(settings))
        times: Numbers = single(
            spaced(settings.timestep_spacing, count, run.steps, settings.steps_offset)
        )
        sigmas: Numbers = np.interp(times, np.arange(count), levels)
        if settings.levels:
            sigmas = respaced(settings.levels, sigmas, run.steps, (None, None))
            times = times_of(sigmas, levels)
        super().__init__(
            settings, single(_twice(times)), np.append(_twice(single(sigmas)), np.float32(0))
        )
        self._bound = settings.clip_sample_range if settings.clip_sample else None
        self._first: tuple[FloatArray, FloatArray, np.float32] | None = None

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with."""
        return 2 * step

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        slope = self._slope(output, self.sigmas[call], sample)
        if self._first:
            (start, first, width), self._first = self._first, None
            return single(start + (first + slope) / 2 * width)
        width = self.sigmas[call + 1] - self.sigmas[call]
        self._first = sample, slope, width
        return single(sample + slope * width)

    def _image(self, output: FloatArray, sigma: np.float32, sample: FloatArray) -> FloatArray:
        image = super()._image(output, sigma, sample)
        return (
            image
            if self._bound is None
            else np.clip(image, np.float32(-self._bound), np.float32(self._bound))
        )


def _twice(values: Numbers) -> Numbers:
    """Return values, each but the first twice."""
    return np.append(values[:1], values[1:].repeat(2))
