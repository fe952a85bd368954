# SPDX-License-Identifier: Apache-2.0
"""DDIM: deterministic steps along the predicted image and the predicted noise."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.clipping import ClippingSettings
from qeff_zoo.tasks.diffusion.schedulers.discrete import DiscreteScheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Run, single
from qeff_zoo.tasks.diffusion.schedulers.spacing import Spacing, rounded
from qeff_zoo.tasks.diffusion.schedulers.training import TrainingSettings, image_shares


@dataclass(frozen=True, kw_only=True)
class DdimSettings(TrainingSettings, ClippingSettings):
    """Settings of diffusers' `DDIMScheduler`."""

    set_alpha_to_one: bool = True
    steps_offset: int = 0
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    timestep_spacing: Spacing = "leading"
    rescale_betas_zero_snr: bool = False


class DdimScheduler(DiscreteScheduler):
    """DDIM without added noise (eta 0), as pipelines use it by default."""

    def __init__(self, settings: DdimSettings, run: Run) -> None:
        run.refuse_sigmas("DDIMScheduler")
        count = settings.num_train_timesteps
        times = rounded(settings.timestep_spacing, count, run.steps, settings.steps_offset)
        shares = image_shares(settings, zero_snr=settings.rescale_betas_zero_snr)
        super().__init__(times, shares, settings.prediction_type)
        self._settings, self._stride = settings, count // run.steps
        self._last_share = np.float32(1) if settings.set_alpha_to_one else shares[0]

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        time = self.times[call]
        share, before = self._shares[time], time - self._stride
        next_share = self._shares[before] if before >= 0 else self._last_share
        image = self._settings.bounded(self._image(output, share, sample))
        direction = np.sqrt(1 - next_share) * self._noise(output, share, sample)
        return single(np.sqrt(next_share) * image + direction)

    def _noise(self, output: FloatArray, share: np.float32, sample: FloatArray) -> FloatArray:
        root, noise_root = np.sqrt(share), np.sqrt(1 - share)
        match self._prediction:
            case "epsilon":
                return output
            case "sample":
                return single((sample - root * output) / noise_root)
            case _:
                return single(root * output + noise_root * sample)
