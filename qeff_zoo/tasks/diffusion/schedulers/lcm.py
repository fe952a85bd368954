# SPDX-License-Identifier: Apache-2.0
"""LCM: a latent consistency model predicts the image at once; each step but the last adds noise again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.clipping import ClippingSettings
from qeff_zoo.tasks.diffusion.schedulers.discrete import DiscreteScheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Run, single
from qeff_zoo.tasks.diffusion.schedulers.spacing import Integers, Spacing
from qeff_zoo.tasks.diffusion.schedulers.training import TrainingSettings, image_shares

_SIGMA_DATA = 0.5


@dataclass(frozen=True, kw_only=True)
class LcmSettings(TrainingSettings, ClippingSettings):
    """Settings of diffusers' `LCMScheduler`.

    It ignores `timestep_spacing` and `steps_offset`: its times are among those of the distillation. `set_alpha_to_one`
    would apply before the first training time, which no step reaches.
    """

    beta_start: float = 0.00085
    beta_end: float = 0.012
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "scaled_linear"
    original_inference_steps: int = 50
    clip_sample: bool = False
    set_alpha_to_one: bool = True
    steps_offset: int = 0
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    timestep_spacing: Spacing = "leading"
    timestep_scaling: float = 10.0
    rescale_betas_zero_snr: bool = False

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        steps, most = self.original_inference_steps, self.num_train_timesteps
        if not 1 <= steps <= most:
            yield f"Setting 'original_inference_steps' is {steps}; expected 1 to {most}, the number of training times."


class LcmScheduler(DiscreteScheduler):
    """Steps of a latent consistency model."""

    def __init__(self, settings: LcmSettings, run: Run) -> None:
        run.refuse_sigmas("LCMScheduler")
        shares = image_shares(settings, zero_snr=settings.rescale_betas_zero_snr)
        super().__init__(_times(settings, run.steps), shares, settings.prediction_type)
        self._settings = settings

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        image = self._settings.bounded(self._image(output, self._shares[self.times[call]], sample))
        skip, scale = self._boundary(int(self.times[call]))
        denoised = single(scale * image + skip * sample)
        if call == len(self.times) - 1:
            return denoised
        share = self._shares[self.times[call + 1]]
        return single(np.sqrt(share) * denoised + np.sqrt(1 - share) * noise(output.shape))

    def _boundary(self, time: int) -> tuple[FloatArray, FloatArray]:
        """Return the weights of the sample and of the image: the sample remains as it is at time 0."""
        scaled, data = single(time * self._settings.timestep_scaling), _SIGMA_DATA**2
        sum_of_squares = single(scaled * scaled) + single(data)
        return single(data / sum_of_squares), single(scaled / np.sqrt(sum_of_squares))


def _times(settings: LcmSettings, steps: int) -> Integers:
    """Return times among those of the distillation, evenly spaced.

    Raises:
        GenerationError: There are more steps than those of the distillation.
    """
    most = settings.original_inference_steps
    if steps > most:
        raise GenerationError(
            f"Cannot run LCMScheduler with {steps} steps: the model is distilled for {most}"
            f" ('original_inference_steps'). Expected at most {most}. Use fewer steps."
        )
    distilled = np.arange(1, most + 1) * (settings.num_train_timesteps // most) - 1
    times: Integers = distilled[::-1][np.linspace(0, most, steps, endpoint=False).astype(np.int64)]
    return times
