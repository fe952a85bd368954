# SPDX-License-Identifier: Apache-2.0
"""Base of schedulers that step between whole training times: DDIM, DDPM, LCM and PNDM."""

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, single
from qeff_zoo.tasks.diffusion.schedulers.spacing import Integers


class DiscreteScheduler:
    """Times among the training times; the sample's variance stays 1.

    Args:
        times: Time of each call.
        shares: Share of the image at each training time; see `image_shares`.
        prediction: Quantity that the denoiser predicts.

    Raises:
        GenerationError: A time is no training time.
    """

    initial_sigma = 1.0

    def __init__(self, times: Integers, shares: FloatArray, prediction: str) -> None:
        if times.min() < 0 or times.max() >= len(shares):
            raise GenerationError(
                f"Cannot space {len(times)} calls: times {times.min()} to {times.max()} are not within the training"
                f" times 0 to {len(shares) - 1}. Expected fewer steps. Use fewer steps, or a lower 'steps_offset'."
            )
        self.times, self._shares, self._prediction = times, shares, prediction
        self.timesteps: FloatArray = times.astype(np.float32)

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with."""
        return step

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the sample itself."""
        return sample

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return latents with the noise of a call."""
        share = self._shares[self.times[call]]
        return single(np.sqrt(share) * original + np.sqrt(1 - share) * noise)

    @np.errstate(divide="ignore")  # without a share of the image, clipping bounds the prediction
    def _image(self, output: FloatArray, share: np.float32, sample: FloatArray) -> FloatArray:
        """Return the image that the denoiser predicts from a sample with a share of the image."""
        root, noise_root = np.sqrt(share), np.sqrt(1 - share)
        match self._prediction:
            case "epsilon":
                return single((sample - noise_root * output) / root)
            case "sample":
                return output
            case _:
                return single(root * sample - noise_root * output)
