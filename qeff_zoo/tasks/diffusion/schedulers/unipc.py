# SPDX-License-Identifier: Apache-2.0
"""UniPC: a predictor of order 1 to 3, whose samples the next call's prediction corrects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.schedulers.scheduler import (
    FloatArray,
    Noise,
    Numbers,
    Run,
    expm1,
    single,
)
from qeff_zoo.tasks.diffusion.schedulers.sigmas import (
    dynamically_shifted,
    respaced,
    shifted,
    stretched,
    times_of,
    with_last,
)
from qeff_zoo.tasks.diffusion.schedulers.solvers import MultistepSolver, SolverSettings
from qeff_zoo.tasks.diffusion.schedulers.spacing import solver_times

_NEAR = 1e-6  # distance from level 1 of a flow, whose logarithm is infinite


@dataclass(frozen=True, kw_only=True)
class UnipcSettings(SolverSettings):
    """Settings of diffusers' `UniPCMultistepScheduler`; another scheduler as its predictor is refused."""

    predict_x0: bool = True
    solver_type: Literal["bh1", "bh2", "midpoint", "heun", "logrho"] = "bh2"
    disable_corrector: tuple[int, ...] = ()
    solver_p: None = None
    time_shift_type: Literal["exponential", "linear"] = "exponential"
    sigma_min: float | None = None
    sigma_max: float | None = None
    shift_terminal: float | None = None

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.predict_x0 and self.prediction_type == "flow_prediction":
            yield "Setting 'predict_x0' false excludes 'prediction_type' 'flow_prediction'."
        if self.shift_terminal is not None and not self.use_flow_sigmas:
            yield "Setting 'shift_terminal' requires 'use_flow_sigmas'."
        if self.solver_type == "bh1" and self.final_sigmas_type == "zero":
            yield (  # diffusers multiplies an infinite scale by 0
                "Setting 'solver_type' 'bh1' has no step to level 0; expected 'final_sigmas_type' 'sigma_min'."
            )


class UnipcScheduler(MultistepSolver):
    """Steps of UniPC."""

    _settings: UnipcSettings

    def __init__(self, settings: UnipcSettings, run: Run) -> None:
        times, sigmas = _schedule(settings, run)
        super().__init__(settings, times, sigmas)
        self._order = 0
        self._before: FloatArray | None = None

    @np.errstate(divide="ignore", invalid="ignore")  # a last step between equal levels has no width
    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        settings = self._settings
        prediction = (self._image if settings.predict_x0 else self._noise)(output, call, sample)
        if self._before is not None and call - 1 not in settings.disable_corrector:
            sample = self._moved(self._before, call - 1, self._order, prediction)
        self._keep(prediction)
        self._order = min(settings.solver_order, len(self._predictions))
        if settings.lower_order_final:
            self._order = min(self._order, len(self.timesteps) - call)
        self._before = sample
        return self._moved(sample, call, self._order)

    def _moved(
        self, sample: FloatArray, call: int, order: int, following: FloatArray | None = None
    ) -> FloatArray:
        """Return the sample of the next call.

        Args:
            sample: Sample of a call.
            call: Number of the call.
            order: Order of the step.
            following: Prediction of the next call, if the sample is corrected by it.
        """
        image_based, latest = self._settings.predict_x0, self._predictions
        width = self._logs[call + 1] - self._logs[call]
        signed = -width if image_based else width
        growth = expm1(signed)
        scale = signed if self._settings.solver_type == "bh1" else growth
        ratios = [(self._logs[call - back] - self._logs[call]) / width for back in range(1, order)]
        differences = [(latest[back] - latest[0]) / ratio for back, ratio in enumerate(ratios, 1)]
        if following is not None:
            ratios.append(1)
            differences.append(following - latest[0])
        kept, added = (self._noises, self._alphas) if image_based else (self._alphas, self._noises)
        moved = kept[call + 1] / kept[call] * sample - added[call + 1] * growth * latest[0]
        if not differences:
            return single(moved)
        simple = 1 if following is not None else 2  # diffusers takes one half at this order
        weights = single([0.5]) if order == simple else _weights(ratios, signed, growth, scale)
        total = sum(weight * part for weight, part in zip(weights, differences, strict=True))
        return single(moved - added[call + 1] * scale * total)


def _weights(ratios: Sequence[Any], signed: Any, growth: Any, scale: Any) -> FloatArray:
    """Return the weights of divided differences, which solve a system of their distances' powers."""
    rows, right = [], []
    factor, factorial = growth / signed - 1, 1
    for power in range(len(ratios)):
        rows.append(single(ratios) ** power)
        right.append(factor * factorial / scale)
        factorial *= power + 2
        factor = factor / signed - 1 / factorial
    return single(np.linalg.solve(single(rows), single(right)))


def _schedule(settings: UnipcSettings, run: Run) -> tuple[Numbers, FloatArray]:
    """Return the times, and the noise levels before each step and after the last."""
    if settings.levels is None and settings.use_flow_sigmas:
        return _flow_schedule(settings, run)
    run.refuse_sigmas("UniPCMultistepScheduler without flow sigmas")
    training, count, steps = settings.training_levels(), settings.num_train_timesteps, run.steps
    zero = settings.final_sigmas_type == "zero"
    if settings.levels is None:
        times = solver_times(settings.timestep_spacing, count, steps, settings.steps_offset)
        sigmas: Numbers = np.interp(times, np.arange(len(training)), training)
        return times, with_last(sigmas, 0 if zero else training[0])
    sigmas = respaced(
        settings.levels, training[::-1], steps, (settings.sigma_min, settings.sigma_max)
    )
    if settings.use_karras_sigmas and settings.use_flow_sigmas:
        sigmas = sigmas / (sigmas + 1)
        times = sigmas * count
    else:
        times = times_of(sigmas, training)
        times = times.round() if settings.use_karras_sigmas else times
    return times, with_last(sigmas, 0 if zero else sigmas[-1])


def _flow_schedule(settings: UnipcSettings, run: Run) -> tuple[Numbers, FloatArray]:
    """Return the schedule of a flow.

    Raises:
        GenerationError: The number of given noise levels is not that of the steps.
    """
    count = settings.num_train_timesteps
    sigmas: Numbers = np.linspace(1, 1 / count, run.steps + 1)[:-1]
    if run.sigmas is not None:
        if len(run.sigmas) != run.steps:
            raise GenerationError(
                f"Cannot use {len(run.sigmas)} sigmas for {run.steps} steps of UniPCMultistepScheduler: expected"
                f" {run.steps}. Change the steps or the sigmas."
            )
        sigmas = np.array(run.sigmas)
    if settings.use_dynamic_shifting and run.mu is not None:
        sigmas = dynamically_shifted(sigmas, run.mu, settings.time_shift_type)
    else:
        sigmas = shifted(sigmas, settings.flow_shift)
    sigmas = stretched(sigmas, settings.shift_terminal)
    if abs(sigmas[0] - 1) < _NEAR:
        sigmas[0] -= _NEAR
    return sigmas * count, with_last(
        sigmas, 0 if settings.final_sigmas_type == "zero" else sigmas[-1]
    )
