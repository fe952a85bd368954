# SPDX-License-Identifier: Apache-2.0
"""DPM-Solver++ with the preconditioning of Karras et al. (EDM), whose time is the level of noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.clipping import ThresholdSettings
from qeff_zoo.tasks.diffusion.schedulers.dpm_solver import DpmSolverScheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Run, exp, log, single
from qeff_zoo.tasks.diffusion.schedulers.sigmas import with_last


@dataclass(frozen=True, kw_only=True)
class EdmDpmSettings(ThresholdSettings):
    """Settings of diffusers' `EDMDPMSolverMultistepScheduler`."""

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    sigma_data: float = 0.5
    sigma_schedule: Literal["karras", "exponential"] = "karras"
    num_train_timesteps: int = 1000
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"
    rho: float = 7.0
    solver_order: int = 2
    algorithm_type: Literal["dpmsolver++", "sde-dpmsolver++"] = "dpmsolver++"
    solver_type: Literal["midpoint", "heun"] = "midpoint"
    lower_order_final: bool = True
    euler_at_final: bool = False
    final_sigmas_type: Literal["zero", "sigma_min"] = "zero"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("sigma_min", "sigma_max", "sigma_data", "rho", "num_train_timesteps"):
            if not (value := getattr(self, name)) > 0:
                yield f"Setting {name!r} is {value}; expected a positive number."
        if not 1 <= self.solver_order <= 3:
            yield f"Setting 'solver_order' is {self.solver_order}; expected 1, 2 or 3."
        if self.adds_noise and self.solver_order == 3:
            yield "Setting 'algorithm_type' 'sde-dpmsolver++' has no order 3; expected 'solver_order' 1 or 2."

    @property
    def adds_noise(self) -> bool:
        """Whether each step adds noise."""
        return self.algorithm_type.startswith("sde")


class EdmDpmScheduler(DpmSolverScheduler):
    """Steps of DPM-Solver++ between levels of noise, of samples whose image has its own variance."""

    _settings: EdmDpmSettings  # type: ignore[assignment]

    def __init__(self, settings: EdmDpmSettings, run: Run) -> None:
        run.refuse_sigmas("EDMDPMSolverMultistepScheduler")
        levels = _levels(settings, run.steps)
        self.timesteps = single(np.float32(0.25) * log(levels))
        last = settings.sigma_min if settings.final_sigmas_type == "sigma_min" else 0
        self.sigmas = self._noises = with_last(levels, last)
        self._alphas = np.ones_like(self.sigmas)
        with np.errstate(divide="ignore"):  # level 0 has no logarithm
            self._logs = log(self._alphas) - log(self._noises)
        self._settings, self._predictions = settings, []
        self.initial_sigma = float((settings.sigma_max**2 + 1) ** 0.5)

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the sample, scaled to variance 1."""
        return single(sample * (np.float32(1) / np.sqrt(self._variance(call))))

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return latents with the noise of a call."""
        return single(original + noise * self.sigmas[call])

    def _variance(self, call: int) -> np.float32:
        """Return the variance of the sample of a call."""
        sigma = self.sigmas[call]
        variance: np.float32 = sigma * sigma + np.float32(self._settings.sigma_data**2)
        return variance

    def _prediction(self, output: FloatArray, call: int, sample: FloatArray) -> FloatArray:
        """Return the image that the denoiser predicts, within its bounds."""
        data, variance = self._settings.sigma_data, self._variance(call)
        scale = self.sigmas[call] * np.float32(data) / np.sqrt(variance)
        if self._settings.prediction_type == "v_prediction":
            scale = -scale
        of_sample = np.float32(data**2) / variance
        return self._settings.bounded(single(of_sample * sample + scale * output))


def _levels(settings: EdmDpmSettings, steps: int) -> FloatArray:
    """Return the noise levels before each step."""
    least, largest = settings.sigma_min, settings.sigma_max
    if settings.sigma_schedule == "exponential":
        return exp(_evenly(float(np.log(least)), float(np.log(largest)), steps))[::-1]
    first, last = largest ** (1 / settings.rho), least ** (1 / settings.rho)
    roots = np.float32(first) + _evenly(0, 1, steps) * np.float32(last - first)
    return single(roots.astype(np.float64) ** settings.rho)


def _evenly(start: float, stop: float, count: int) -> FloatArray:
    """Return evenly spaced numbers in single precision, each from the nearer end and rounded once, as torch does."""
    first, last = np.float32(start), np.float32(stop)
    if count == 1:
        return single([first])
    stride = np.float64((last - first) / np.float32(count - 1))
    places = np.arange(count)
    near_first = places < count // 2
    return single(np.where(near_first, first + stride * places, last - stride * places[::-1]))
