# SPDX-License-Identifier: Apache-2.0
"""Flow matching: Euler's method along straight lines from noise to an image."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Numbers, Run, single
from qeff_zoo.tasks.diffusion.schedulers.sigmas import (
    LevelSettings,
    dynamically_shifted,
    respaced,
    shifted,
    stretched,
    with_last,
)


@dataclass(frozen=True, kw_only=True)
class FlowMatchSettings(LevelSettings):
    """Settings of diffusers' `FlowMatchEulerDiscreteScheduler`.

    `base_shift`, `max_shift`, `base_image_seq_len` and `max_image_seq_len` give the shift of an image's size.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    base_shift: float | None = 0.5
    max_shift: float | None = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    invert_sigmas: bool = False
    shift_terminal: float | None = None
    time_shift_type: Literal["exponential", "linear"] = "exponential"
    stochastic_sampling: bool = False

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.num_train_timesteps < 1:
            yield f"Setting 'num_train_timesteps' is {self.num_train_timesteps}; expected at least 1."
        if self.shift <= 0:
            yield f"Setting 'shift' is {self.shift}; expected a positive number."
        if self.shift_terminal is not None and not 0 <= self.shift_terminal < 1:
            yield f"Setting 'shift_terminal' is {self.shift_terminal}; expected a number from 0 to below 1."


class FlowMatchEulerScheduler:
    """Euler's method from noise of level 1 to an image of level 0, or the reverse if levels are inverted.

    Raises:
        GenerationError: The number of given noise levels is not that of the steps.
    """

    initial_sigma = 1.0

    def __init__(self, settings: FlowMatchSettings, run: Run) -> None:
        sigmas = single(_levels(settings, run))
        if settings.invert_sigmas:
            sigmas = 1 - sigmas
        self.timesteps = single(sigmas * settings.num_train_timesteps)
        self.sigmas = with_last(sigmas, 1 if settings.invert_sigmas else 0)
        self._stochastic = settings.stochastic_sampling

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with."""
        return step

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the sample itself."""
        return sample

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return latents with the noise of a call."""
        sigma = self.sigmas[call]
        return single(sigma * noise + (1 - sigma) * original)

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        sigma, target = self.sigmas[call], self.sigmas[call + 1]
        if not self._stochastic:
            return single(sample + (target - sigma) * output)
        image = sample - sigma * output
        return single((1 - target) * image + target * noise(sample.shape))


def _levels(settings: FlowMatchSettings, run: Run) -> Numbers:
    """Return the noise levels before each step."""
    sigmas: Numbers
    if run.sigmas is None:
        sigmas = _even_levels(settings, run.steps)
    elif len(run.sigmas) == run.steps:
        sigmas = single(run.sigmas)
    else:
        raise GenerationError(
            f"Cannot use {len(run.sigmas)} sigmas for {run.steps} steps of FlowMatchEulerDiscreteScheduler: expected"
            f" {run.steps}. Change the steps or the sigmas."
        )
    if settings.use_dynamic_shifting and run.mu is not None:
        sigmas = dynamically_shifted(sigmas, run.mu, settings.time_shift_type)
    else:
        sigmas = shifted(sigmas, settings.shift)
    sigmas = stretched(sigmas, settings.shift_terminal)
    return respaced(settings.levels, sigmas, run.steps, (None, None)) if settings.levels else sigmas


def _even_levels(settings: FlowMatchSettings, steps: int) -> Numbers:
    """Return levels evenly spaced between those of training, which are shifted already unless that is dynamic."""
    count = settings.num_train_timesteps
    bounds = single([count, 1]) / single(count)
    if not settings.use_dynamic_shifting:
        bounds = single(shifted(bounds, settings.shift))
    return np.linspace(float(bounds[0]) * count, float(bounds[1]) * count, steps) / count
