# SPDX-License-Identifier: Apache-2.0
"""The interface of a scheduler, and the arrays and options that all of them share.

Every scheduler computes in float32 and in the order of operations of diffusers' class of the same name, so that a step
from the same sample differs by the rounding of exponentials and logarithms alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qeff_zoo.errors import GenerationError

#: Samples, outputs and times: float32.
FloatArray = np.ndarray[Any, np.dtype[Any]]
#: Function that returns standard normal noise of a shape.
Noise = Callable[[tuple[int, ...]], FloatArray]
#: Schedules, which are computed in double precision where diffusers does so.
Numbers = np.ndarray[Any, np.dtype[Any]]


class Scheduler(Protocol):
    """Times of the denoiser's calls, and the step from each sample to the next.

    A scheduler belongs to one image (or batch): `step` keeps earlier outputs. Calls come in order; the first is 0, or
    a later one for image-to-image.

    Attributes:
        timesteps: Times that the denoiser gets, call by call; there may be more calls than steps.
        initial_sigma: Standard deviation of the first sample.
    """

    timesteps: FloatArray
    initial_sigma: float

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with, for images that begin with another image.

        Args:
            step: Number of the step, from 0.

        Raises:
            GenerationError: A run cannot begin with that step.
        """
        ...

    def model_input(self, sample: FloatArray, call: int) -> FloatArray:
        """Return the denoiser's input of a call."""
        ...

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call.

        Args:
            output: Output of the denoiser, after guidance.
            call: Number of the call, from 0.
            sample: Sample before the call; not the denoiser's input.
            noise: Source of noise, for schedulers that add some.
        """
        ...

    def noisy(self, original: FloatArray, noise: FloatArray, call: int) -> FloatArray:
        """Return an image's latents with the noise of a call, where image-to-image starts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """Options of one run of a pipeline.

    Args:
        steps: Number of steps.
        mu: Logarithm of the time shift, for dynamic shifting.
        sigmas: Noise levels of the steps in place of the scheduler's own.
    """

    steps: int
    mu: float | None = None
    sigmas: tuple[float, ...] | None = None

    def refuse_sigmas(self, kind: str) -> None:
        """Refuse noise levels for a scheduler that computes its own.

        Raises:
            GenerationError: There are noise levels.
        """
        if self.sigmas is not None:
            raise GenerationError(
                f"Cannot use given sigmas with {kind}: it computes its own. Expected none. Remove the sigmas."
            )


def single(values: Any) -> FloatArray:
    """Return numbers in single precision, in which all steps are computed."""
    return np.asarray(values, np.float32)


def log(values: Any) -> FloatArray:
    """Return logarithms with correct rounding, as numpy's own in single precision have not."""
    return single(np.log(np.asarray(values, np.float64)))


def exp(values: Any) -> FloatArray:
    """Return exponentials with correct rounding; see `log`."""
    return single(np.exp(np.asarray(values, np.float64)))


def expm1(values: Any) -> FloatArray:
    """Return exponentials less 1 with correct rounding; see `log`."""
    return single(np.expm1(np.asarray(values, np.float64)))
