# SPDX-License-Identifier: Apache-2.0
"""DPM-Solver and DPM-Solver++, multistep, of order 1 to 3, deterministic or with noise (sde)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.scheduler import (
    FloatArray,
    Noise,
    Numbers,
    Run,
    exp,
    log,
    single,
)
from qeff_zoo.tasks.diffusion.schedulers.sigmas import respaced, shifted, times_of, with_last
from qeff_zoo.tasks.diffusion.schedulers.solvers import MultistepSolver, SolverSettings
from qeff_zoo.tasks.diffusion.schedulers.spacing import solver_times

_FEW_STEPS = 15  # fewer steps end with lower orders


@dataclass(frozen=True, kw_only=True)
class DpmSolverSettings(SolverSettings):
    """Settings of diffusers' `DPMSolverMultistepScheduler`."""

    algorithm_type: Literal[
        "dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++", "deis"
    ] = "dpmsolver++"
    solver_type: Literal["midpoint", "heun", "logrho", "bh1", "bh2"] = "midpoint"
    euler_at_final: bool = False
    use_lu_lambdas: bool = False
    lambda_min_clipped: float = -float("inf")
    variance_type: Literal["learned", "learned_range"] | None = None
    time_shift_type: Literal["exponential"] = "exponential"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.algorithm_type.endswith("++") and self.final_sigmas_type == "zero":
            yield f"Setting 'algorithm_type' {self.algorithm_type!r} requires 'final_sigmas_type' 'sigma_min'."
        if not self.predicts_image and self.prediction_type == "flow_prediction":
            yield f"Setting 'algorithm_type' {self.algorithm_type!r} excludes 'prediction_type' 'flow_prediction'."
        if self.algorithm_type == "sde-dpmsolver" and self.solver_order == 3:
            yield "Setting 'algorithm_type' 'sde-dpmsolver' has no order 3; expected 'solver_order' 1 or 2."

    @property
    def predicts_image(self) -> bool:
        """Whether steps extrapolate the predicted image rather than the noise; "deis" is read as DPM-Solver++."""
        return self.algorithm_type in ("dpmsolver++", "sde-dpmsolver++", "deis")

    @property
    def adds_noise(self) -> bool:
        """Whether each step adds noise."""
        return self.algorithm_type.startswith("sde")


class DpmSolverScheduler(MultistepSolver):
    """Steps that extrapolate the predictions of up to three calls."""

    _settings: DpmSolverSettings

    def __init__(self, settings: DpmSolverSettings, run: Run) -> None:
        run.refuse_sigmas("DPMSolverMultistepScheduler")
        times, sigmas = _schedule(settings, run)
        last = settings.training_levels()[0] if settings.final_sigmas_type == "sigma_min" else 0
        super().__init__(settings, times, with_last(sigmas, last))

    @np.errstate(divide="ignore", invalid="ignore")  # a last step between equal levels has no width
    def step(self, output: FloatArray, call: int, sample: FloatArray, noise: Noise) -> FloatArray:
        """Return the sample after a call."""
        self._keep(self._prediction(output, call, sample))
        order = self._order(call)
        of_sample, of_predictions, of_noise = self._weights(call, order)
        after = of_sample * sample
        for weight, difference in zip(of_predictions, self._differences(call, order), strict=True):
            after = after + weight * difference
        return single(
            after + of_noise * noise(sample.shape) if self._settings.adds_noise else after
        )

    def _prediction(self, output: FloatArray, call: int, sample: FloatArray) -> FloatArray:
        settings = self._settings
        if settings.variance_type and settings.prediction_type == "epsilon":
            output = output[:, :3]
        if settings.predicts_image:
            return self._image(output, call, sample)
        predicted = self._noise(output, call, sample)
        if not settings.thresholding:
            return predicted
        alpha, noise = self._alphas[call], self._noises[call]
        image = settings.bounded(single((sample - noise * predicted) / alpha))
        return single((sample - alpha * image) / noise)

    def _order(self, call: int) -> int:
        """Return the order of a step: the first steps have few predictions, the last ones of few steps are unstable."""
        settings, steps = self._settings, len(self.timesteps)
        few = settings.lower_order_final and steps < _FEW_STEPS
        order = min(settings.solver_order, len(self._predictions))
        if call == steps - 1 and (
            settings.euler_at_final or few or settings.final_sigmas_type == "zero"
        ):
            return 1
        return min(order, 2) if call == steps - 2 and few else order

    def _differences(self, call: int, order: int) -> list[FloatArray]:
        """Return the latest prediction and its divided differences, as many as the order."""
        latest = self._predictions
        if order == 1:
            return latest[:1]
        width = self._logs[call + 1] - self._logs[call]
        ratio = (self._logs[call] - self._logs[call - 1]) / width
        first = single(1 / ratio * (latest[0] - latest[1]))
        if order == 2:
            return [latest[0], first]
        earlier = (self._logs[call - 1] - self._logs[call - 2]) / width
        change = first - 1 / earlier * (latest[1] - latest[2])
        total = ratio + earlier
        return [latest[0], single(first + ratio / total * change), single(1 / total * change)]

    def _weights(self, call: int, order: int) -> tuple[Any, list[Any], Any]:
        """Return the weights of the sample, of the predictions and of the noise."""
        width = self._logs[call + 1] - self._logs[call]
        alpha, sigma = self._alphas[call + 1], self._noises[call + 1]
        image_ratio, noise_ratio = alpha / self._alphas[call], sigma / self._noises[call]
        midpoint = self._settings.solver_type != "heun" and order == 2
        match self._settings.algorithm_type:
            case "dpmsolver++" | "deis":
                growth = exp(-width) - 1
                weights = [-(alpha * growth)]
                if order > 1:
                    weights.append(
                        -0.5 * (alpha * growth) if midpoint else alpha * (growth / width + 1)
                    )
                if order > 2:
                    weights.append(-(alpha * ((growth + width) / (width * width) - 0.5)))
                return noise_ratio, weights, 0
            case "dpmsolver":
                growth = exp(width) - 1
                weights = [-(sigma * growth)]
                if order > 1:
                    weights.append(
                        -0.5 * (sigma * growth) if midpoint else -(sigma * (growth / width - 1))
                    )
                if order > 2:
                    weights.append(-(sigma * ((growth - width) / (width * width) - 0.5)))
                return image_ratio, weights, 0
            case "sde-dpmsolver++":
                growth, double = 1 - exp(-2 * width), 2 * width
                weights = [alpha * growth]
                if order > 1:
                    weights.append(
                        0.5 * (alpha * growth) if midpoint else alpha * (growth / -double + 1)
                    )
                if order > 2:
                    weights.append(alpha * ((growth - double) / (double * double) - 0.5))
                return noise_ratio * exp(-width), weights, sigma * np.sqrt(growth)
            case "sde-dpmsolver":
                growth = exp(width) - 1
                weights = [-2 * (sigma * growth)]
                if order > 1:
                    weights.append(
                        -(sigma * growth) if midpoint else -2 * (sigma * (growth / width - 1))
                    )
                return image_ratio, weights, sigma * np.sqrt(exp(2 * width) - 1)


def _schedule(settings: DpmSolverSettings, run: Run) -> tuple[Numbers, Numbers]:
    """Return the times and the noise levels before each step."""
    training, count, steps = settings.training_levels(), settings.num_train_timesteps, run.steps
    times: Numbers
    if settings.levels or settings.use_lu_lambdas:
        return _respaced_schedule(settings, training, steps)
    if settings.use_flow_sigmas:
        shift = settings.flow_shift if run.mu is None else float(np.exp(run.mu))
        sigmas = 1 - np.linspace(1, 1 / count, steps + 1)
        sigmas = shifted(sigmas, shift)[::-1][:-1]
        return sigmas * count, sigmas
    times = solver_times(
        settings.timestep_spacing, count, steps, settings.steps_offset, _last_time(settings)
    )
    return times, np.interp(times, np.arange(len(training)), training)


def _respaced_schedule(
    settings: DpmSolverSettings, training: FloatArray, steps: int
) -> tuple[Numbers, Numbers]:
    sigmas: Numbers = training[::-1]
    if settings.levels and not (settings.use_lu_lambdas and not settings.use_karras_sigmas):
        sigmas = respaced(settings.levels, sigmas, steps, (None, None))
    else:
        logs = np.log(sigmas)
        first, last = float(logs[0]), float(logs[-1])
        sigmas = np.exp(first + np.linspace(0, 1, steps) * (last - first))
    times = times_of(sigmas, training)
    whole = settings.use_karras_sigmas or settings.use_lu_lambdas
    return (
        times.round() if whole and settings.beta_schedule != "squaredcos_cap_v2" else times,
        sigmas,
    )


def _last_time(settings: DpmSolverSettings) -> int:
    """Return the number of training times whose noise level is not clipped."""
    shares = settings.training_shares()
    logs = log(np.sqrt(shares)) - log(np.sqrt(1 - shares))
    clipped = np.searchsorted(logs[::-1], np.float32(settings.lambda_min_clipped))
    return settings.num_train_timesteps - int(clipped)
