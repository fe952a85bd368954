# SPDX-License-Identifier: Apache-2.0
"""Euler's method over noise levels, deterministic, or with noise added after each step (ancestral)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.scheduler import (
    FloatArray,
    Noise,
    Numbers,
    Run,
    exp,
    log,
    single,
)
from qeff_zoo.tasks.diffusion.schedulers.sigmas import LevelSettings, respaced, times_of, with_last
from qeff_zoo.tasks.diffusion.schedulers.spacing import Spacing, spaced
from qeff_zoo.tasks.diffusion.schedulers.training import (
    TrainingSettings,
    image_shares,
    linspace,
    noise_levels,
    with_least_share,
)


@dataclass(frozen=True, kw_only=True)
class EulerAncestralSettings(TrainingSettings):
    """Settings of diffusers' `EulerAncestralDiscreteScheduler`."""

    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"
    timestep_spacing: Spacing = "linspace"
    steps_offset: int = 0
    rescale_betas_zero_snr: bool = False


@dataclass(frozen=True, kw_only=True)
class EulerSettings(TrainingSettings, LevelSettings):
    """Settings of diffusers' `EulerDiscreteScheduler`."""

    prediction_type: Literal["epsilon", "sample", "original_sample", "v_prediction"] = "epsilon"
    interpolation_type: Literal["linear", "log_linear"] = "linear"
    sigma_min: float | None = None
    sigma_max: float | None = None
    timestep_spacing: Spacing = "linspace"
    timestep_type: Literal["discrete", "continuous"] = "discrete"
    steps_offset: int = 0
    rescale_betas_zero_snr: bool = False
    final_sigmas_type: Literal["zero", "sigma_min"] = "zero"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("sigma_min", "sigma_max"):
            if (value := getattr(self, name)) is not None and value <= 0:
                yield f"Setting {name!r} is {value}; expected a positive number."


class SpacedSettings(Protocol):
    """Settings that samples of exploding variance need."""

    @property
    def prediction_type(self) -> str:
        """Quantity that the denoiser predicts."""
        ...

    @property
    def timestep_spacing(self) -> Spacing:
        """Spacing of the times."""
        ...


class VarianceExploding:
    """Samples that are the image plus noise of a level, which the denoiser gets scaled to variance 1.

    Args:
        settings: Settings.
        timesteps: Time of each call.
        sigmas: Noise level of each call, and after the last.
    """

    def __init__(
        self,
        settings: SpacedSettings,
        timesteps: FloatArray,
        sigmas: FloatArray,
    ) -> None:
        self.timesteps, self.sigmas, self._prediction = timesteps, sigmas, settings.prediction_type
        largest = sigmas.max()
        if settings.timestep_spacing == "leading":
            largest = np.sqrt(largest * largest + 1)
        self.initial_sigma = float(largest)

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with."""
        return step

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the sample, scaled to variance 1."""
        sigma = self.sigmas[call]
        return single(sample / np.sqrt(sigma * sigma + 1))

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return latents with the noise of a call."""
        return single(original + noise * self.sigmas[call])

    def _moved(
        self, output: FloatArray, call: int, sample: FloatArray, target: np.float32
    ) -> FloatArray:
        """Return a sample moved from the noise level of a call to another."""
        sigma = self.sigmas[call]
        return single(sample + self._slope(output, sigma, sample) * (target - sigma))

    def _slope(self, output: FloatArray, sigma: np.float32, sample: FloatArray) -> FloatArray:
        """Return the change of a sample by its noise level."""
        return single((sample - self._image(output, sigma, sample)) / sigma)

    def _image(self, output: FloatArray, sigma: np.float32, sample: FloatArray) -> FloatArray:
        match self._prediction:
            case "epsilon":
                return single(sample - sigma * output)
            case "v_prediction":
                square = sigma * sigma + 1
                return single(output * (-sigma / np.sqrt(square)) + sample / square)
            case _:
                return output


class EulerScheduler(VarianceExploding):
    """Euler's method."""

    def __init__(self, settings: EulerSettings, run: Run) -> None:
        levels = _training_levels(settings)
        times, sigmas = (
            _given(run, levels) if run.sigmas else _scheduled(settings, run.steps, levels)
        )
        if settings.timestep_type == "continuous" and settings.prediction_type == "v_prediction":
            times = np.float32(0.25) * log(sigmas[:-1])
        super().__init__(settings, times.astype(np.float32), sigmas)

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        return self._moved(output, call, sample, self.sigmas[call + 1])


class EulerAncestralScheduler(VarianceExploding):
    """Euler's method to a lower noise level than the next, with new noise up to the next."""

    def __init__(self, settings: EulerAncestralSettings, run: Run) -> None:
        run.refuse_sigmas("EulerAncestralDiscreteScheduler")
        levels = _training_levels(settings)
        times = _times(settings, run.steps)
        sigmas = with_last(np.interp(times, np.arange(len(levels)), levels), 0)
        super().__init__(settings, times, sigmas)

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        here, there = self.sigmas[call : call + 2] * self.sigmas[call : call + 2]
        up = np.sqrt(there * (here - there) / here)
        down = np.sqrt(there - up * up)
        return single(self._moved(output, call, sample, down) + noise(output.shape) * up)


def _training_levels(settings: EulerSettings | EulerAncestralSettings) -> FloatArray:
    """Return the noise level at each training time."""
    if not settings.rescale_betas_zero_snr:
        return noise_levels(image_shares(settings))
    return noise_levels(with_least_share(image_shares(settings, zero_snr=True)))


def _times(settings: EulerSettings | EulerAncestralSettings, steps: int) -> FloatArray:
    times = spaced(
        settings.timestep_spacing, settings.num_train_timesteps, steps, settings.steps_offset
    )
    return times.astype(np.float32)


def _scheduled(
    settings: EulerSettings, steps: int, levels: FloatArray
) -> tuple[Numbers, FloatArray]:
    """Return the times and noise levels of the configuration."""
    times: Numbers = _times(settings, steps)
    sigmas: Numbers = np.interp(times, np.arange(len(levels)), levels)
    if settings.interpolation_type == "log_linear":
        sigmas = exp(linspace(float(log(levels[-1])), float(log(levels[0])), steps + 1))
    if settings.levels:
        sigmas = respaced(settings.levels, sigmas, steps, (settings.sigma_min, settings.sigma_max))
        times = times_of(sigmas, levels)
    return times, with_last(sigmas, levels[0] if settings.final_sigmas_type == "sigma_min" else 0)


def _given(run: Run, levels: FloatArray) -> tuple[Numbers, FloatArray]:
    """Return the times of given noise levels, the last of which is that after the last step.

    Raises:
        GenerationError: Their number is not that of the steps and one.
    """
    sigmas = np.array(run.sigmas, np.float32)
    if len(sigmas) != run.steps + 1:
        raise GenerationError(
            f"Cannot use {len(sigmas)} sigmas for {run.steps} steps of EulerDiscreteScheduler: expected"
            f" {run.steps + 1}, the last for the end. Change the steps or the sigmas."
        )
    return times_of(sigmas[:-1], levels), sigmas
