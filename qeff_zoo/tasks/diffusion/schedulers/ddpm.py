# SPDX-License-Identifier: Apache-2.0
"""DDPM: steps to the mean of the samples that led to the current one, with noise of their variance."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.clipping import ClippingSettings
from qeff_zoo.tasks.diffusion.schedulers.discrete import DiscreteScheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Run, exp, log, single
from qeff_zoo.tasks.diffusion.schedulers.spacing import Spacing, rounded
from qeff_zoo.tasks.diffusion.schedulers.training import BetaSettings, image_shares

_LEAST_VARIANCE = 1e-20


@dataclass(frozen=True, kw_only=True)
class DdpmSettings(BetaSettings, ClippingSettings):
    """Settings of diffusers' `DDPMScheduler`; its variance "fixed_large_log" has no square root, and is refused."""

    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", "laplace"] = (
        "linear"
    )
    variance_type: Literal[
        "fixed_small", "fixed_small_log", "fixed_large", "learned", "learned_range"
    ] = "fixed_small"
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    timestep_spacing: Spacing = "leading"
    steps_offset: int = 0
    rescale_betas_zero_snr: bool = False


class DdpmScheduler(DiscreteScheduler):
    """Steps of DDPM; with a learned variance, the second half of the output's channels predicts it."""

    def __init__(self, settings: DdpmSettings, run: Run) -> None:
        run.refuse_sigmas("DDPMScheduler")
        count = settings.num_train_timesteps
        times = rounded(settings.timestep_spacing, count, run.steps, settings.steps_offset)
        shares = image_shares(settings, zero_snr=settings.rescale_betas_zero_snr)
        super().__init__(times, shares, settings.prediction_type)
        self._settings = settings

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        predicted = None
        if self._settings.variance_type in ("learned", "learned_range"):
            output, predicted = _split(output, sample)
        share = self._shares[self.times[call]]
        next_share = self._shares[self.times[call + 1]] if call + 1 < len(self.times) else single(1)
        image = self._settings.bounded(self._image(output, share, sample))
        step_share = share / next_share
        of_image = np.sqrt(next_share) * (1 - step_share) / (1 - share)
        of_sample = np.sqrt(step_share) * (1 - next_share) / (1 - share)
        mean = single(of_image * image + of_sample * sample)
        if self.times[call] == 0:
            return mean
        return single(mean + self._deviation(share, next_share, predicted) * noise(output.shape))

    def _deviation(
        self, share: FloatArray, next_share: FloatArray, predicted: FloatArray | None
    ) -> FloatArray:
        """Return the standard deviation of a step's noise."""
        largest = 1 - share / next_share
        least = np.maximum((1 - next_share) / (1 - share) * largest, np.float32(_LEAST_VARIANCE))
        match self._settings.variance_type:
            case "fixed_small":
                return single(np.sqrt(least))
            case "fixed_small_log":
                return single(exp(0.5 * log(least)))
            case "fixed_large":
                return single(np.sqrt(largest))
            case "learned":
                return single(np.sqrt(single(predicted)))
            case "learned_range":
                part = (single(predicted) + 1) / 2
                return single(exp(0.5 * (part * log(largest) + (1 - part) * log(least))))


def _split(output: FloatArray, sample: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the prediction and the variance of an output.

    Raises:
        GenerationError: The output has another number of channels than twice the sample's.
    """
    channels = sample.shape[1]
    if output.shape[1] != 2 * channels:
        raise GenerationError(
            f"Cannot read a learned variance from an output of {output.shape[1]} channels: expected {2 * channels},"
            " twice the sample's. Use the denoiser's whole output, or another 'variance_type'."
        )
    return output[:, :channels], output[:, channels:]
