# SPDX-License-Identifier: Apache-2.0
"""PNDM: linear multistep steps from the last four outputs, after a Runge-Kutta start or a repeated call."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.discrete import DiscreteScheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Run, single
from qeff_zoo.tasks.diffusion.schedulers.spacing import Integers, Spacing, rounded
from qeff_zoo.tasks.diffusion.schedulers.training import TrainingSettings, image_shares

_ORDER = 4


@dataclass(frozen=True, kw_only=True)
class PndmSettings(TrainingSettings):
    """Settings of diffusers' `PNDMScheduler`."""

    skip_prk_steps: bool = False
    set_alpha_to_one: bool = False
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"
    timestep_spacing: Spacing = "leading"
    steps_offset: int = 0


class PndmScheduler(DiscreteScheduler):
    """PNDM; without Runge-Kutta steps, the second time is called twice.

    Runge-Kutta steps call the denoiser four times a step, for the first three steps.
    """

    def __init__(self, settings: PndmSettings, run: Run) -> None:
        run.refuse_sigmas("PNDMScheduler")
        count = settings.num_train_timesteps
        ascending = rounded(settings.timestep_spacing, count, run.steps, settings.steps_offset)[
            ::-1
        ]
        self._stride = count // run.steps
        self._runge_kutta = np.array([], np.int64)
        if settings.skip_prk_steps:
            times = np.concatenate([ascending[:-1], ascending[-2:-1], ascending[-1:]])[::-1]
        else:
            self._runge_kutta = _runge_kutta_times(ascending, self._stride)
            times = np.concatenate([self._runge_kutta, ascending[: 1 - _ORDER][::-1]])
        shares = image_shares(settings)
        super().__init__(times, shares, settings.prediction_type)
        self._last_share = np.float32(1) if settings.set_alpha_to_one else shares[0]
        self._outputs: list[FloatArray] = []
        self._count, self._sum, self._start = 0, single(0), single(0)

    def call_of(self, step: int) -> int:
        """Return the call that a step begins with.

        Raises:
            GenerationError: A step is left out, and the first ones are Runge-Kutta's.
        """
        if step and len(self._runge_kutta):
            raise GenerationError(
                f"Cannot leave out the first {step} steps of PNDMScheduler, which are Runge-Kutta's. Expected all of"
                " them. Use strength 1, or set 'skip_prk_steps'."
            )
        return step

    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        early = self._count < len(self._runge_kutta)
        step = self._runge_kutta_step if early else self._multistep
        result = step(output, int(self.times[call]), sample)
        self._count += 1
        return result

    def _runge_kutta_step(self, output: FloatArray, time: int, sample: FloatArray) -> FloatArray:
        stage = self._count % 4
        target = time if stage % 2 else time - self._stride // 2
        if stage == 0:
            self._outputs.append(output)
            self._start = sample
        if stage < 3:
            self._sum = self._sum + (1 / 6 if stage == 0 else 1 / 3) * output
        else:
            output, self._sum = self._sum + 1 / 6 * output, single(0)
        return self._moved(
            self._start, int(self._runge_kutta[self._count // 4 * 4]), target, output
        )

    def _multistep(self, output: FloatArray, time: int, sample: FloatArray) -> FloatArray:
        target = time - self._stride
        if (
            self._count == 1
        ):  # the second call repeats the first step, with the mean of both outputs
            time, target = time + self._stride, time
            mean = (output + self._outputs[-1]) / 2
            return self._moved(self._start, time, target, mean)
        if self._count == 0:
            self._start = sample
        self._outputs = [*self._outputs[1 - _ORDER :], output]
        return self._moved(sample, time, target, _extrapolated(self._outputs))

    def _moved(self, sample: FloatArray, time: int, target: int, output: FloatArray) -> FloatArray:
        """Return a sample moved from one time to another."""
        share = self._shares[time]
        next_share = self._shares[target] if target >= 0 else self._last_share
        noise, next_noise = 1 - share, 1 - next_share
        if self._prediction == "v_prediction":
            output = np.sqrt(share) * output + np.sqrt(noise) * sample
        divisor = share * np.sqrt(next_noise) + np.sqrt(share * noise * next_share)
        return single(
            np.sqrt(next_share / share) * sample - (next_share - share) * output / divisor
        )


def _runge_kutta_times(ascending: Integers, stride: int) -> Integers:
    """Return the times of the calls of the first three steps: its own, twice the middle, and the next.

    Raises:
        GenerationError: There are fewer than four steps.
    """
    if len(ascending) < _ORDER:
        raise GenerationError(
            f"Cannot run PNDMScheduler with {len(ascending)} steps: its Runge-Kutta start needs {_ORDER}."
            " Expected more steps. Use more steps, or set 'skip_prk_steps'."
        )
    middles = ascending[-_ORDER:].repeat(2) + np.tile([0, stride // 2], _ORDER)
    times: Integers = middles[:-1].repeat(2)[1:-1][::-1]
    return times


def _extrapolated(outputs: list[FloatArray]) -> FloatArray:
    """Return the output for a step from the last ones (Adams-Bashforth)."""
    latest = outputs[::-1]
    match len(outputs):
        case 1:
            return latest[0]
        case 2:
            return single((3 * latest[0] - latest[1]) / 2)
        case 3:
            return single((23 * latest[0] - 16 * latest[1] + 5 * latest[2]) / 12)
        case _:
            weighted = 55 * latest[0] - 59 * latest[1] + 37 * latest[2] - 9 * latest[3]
            return single((1 / 24) * weighted)
