# SPDX-License-Identifier: Apache-2.0
"""Base of multistep solvers, DPM-Solver and UniPC: shares of image and noise of each level, and earlier outputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.clipping import ThresholdSettings
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Numbers, log, single
from qeff_zoo.tasks.diffusion.schedulers.sigmas import LevelSettings
from qeff_zoo.tasks.diffusion.schedulers.spacing import Spacing
from qeff_zoo.tasks.diffusion.schedulers.training import (
    TrainingSettings,
    image_shares,
    noise_levels,
    with_least_share,
)


@dataclass(frozen=True, kw_only=True)
class SolverSettings(TrainingSettings, ThresholdSettings, LevelSettings):
    """Settings that multistep solvers share."""

    solver_order: int = 2
    prediction_type: Literal["epsilon", "sample", "v_prediction", "flow_prediction"] = "epsilon"
    lower_order_final: bool = True
    use_flow_sigmas: bool = False
    flow_shift: float = 1.0
    final_sigmas_type: Literal["zero", "sigma_min"] = "zero"
    timestep_spacing: Spacing = "linspace"
    steps_offset: int = 0
    rescale_betas_zero_snr: bool = False
    use_dynamic_shifting: bool = False

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.flow_shift <= 0:
            yield f"Setting 'flow_shift' is {self.flow_shift}; expected a positive number."
        if not 1 <= self.solver_order <= 3:
            yield f"Setting 'solver_order' is {self.solver_order}; expected 1, 2 or 3."

    def training_shares(self) -> FloatArray:
        """Return the share of the image at each training time."""
        shares = image_shares(self, zero_snr=self.rescale_betas_zero_snr)
        return with_least_share(shares) if self.rescale_betas_zero_snr else shares

    def training_levels(self) -> FloatArray:
        """Return the noise level at each training time."""
        return noise_levels(self.training_shares())


class MultistepSolver:
    """Samples with shares of image and noise, and the predictions of the last calls.

    Args:
        settings: Settings.
        times: Time of each step; fractions are cut off, as diffusers does.
        sigmas: Noise level before each step, and after the last.
    """

    initial_sigma = 1.0

    def __init__(self, settings: SolverSettings, times: Numbers, sigmas: FloatArray) -> None:
        self.timesteps = single(times.astype(np.int64))
        self.sigmas = sigmas
        self._settings = settings
        if settings.use_flow_sigmas:
            self._alphas, self._noises = 1 - sigmas, sigmas
        else:
            self._alphas = single(1 / np.sqrt(sigmas * sigmas + 1))
            self._noises = sigmas * self._alphas
        with np.errstate(divide="ignore", invalid="ignore"):  # level 0 has no logarithm
            self._logs = log(self._alphas) - log(self._noises)
        self._predictions: list[FloatArray] = []

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with."""
        return step

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the sample itself."""
        return sample

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return latents with the noise of a call."""
        return single(self._alphas[call] * original + self._noises[call] * noise)

    def _keep(self, prediction: FloatArray) -> None:
        """Keep a prediction for later steps, and as many before it as the solver's order needs."""
        self._predictions = [prediction, *self._predictions[: self._settings.solver_order - 1]]

    def _image(self, output: FloatArray, call: int, sample: FloatArray) -> FloatArray:
        """Return the image that the denoiser predicts, within its bounds."""
        alpha, noise = self._alphas[call], self._noises[call]
        match self._settings.prediction_type:
            case "epsilon":
                image = single((sample - noise * output) / alpha)
            case "sample":
                image = output
            case "v_prediction":
                image = single(alpha * sample - noise * output)
            case "flow_prediction":
                image = single(sample - self.sigmas[call] * output)
        return self._settings.bounded(image)

    def _noise(self, output: FloatArray, call: int, sample: FloatArray) -> FloatArray:
        """Return the noise that the denoiser predicts."""
        alpha, noise = self._alphas[call], self._noises[call]
        match self._settings.prediction_type:
            case "epsilon":
                return output
            case "sample":
                return single((sample - alpha * output) / noise)
            case _:
                return single(alpha * output + noise * sample)
