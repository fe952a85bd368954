# SPDX-License-Identifier: Apache-2.0
"""Opening of a scheduler by its configuration."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError, UnsupportedModelError, did_you_mean
from qeff_zoo.tasks.diffusion.schedulers.ddim import DdimScheduler, DdimSettings
from qeff_zoo.tasks.diffusion.schedulers.ddpm import DdpmScheduler, DdpmSettings
from qeff_zoo.tasks.diffusion.schedulers.dpm_solver import DpmSolverScheduler, DpmSolverSettings
from qeff_zoo.tasks.diffusion.schedulers.edm_dpm import EdmDpmScheduler, EdmDpmSettings
from qeff_zoo.tasks.diffusion.schedulers.euler import (
    EulerAncestralScheduler,
    EulerAncestralSettings,
    EulerScheduler,
    EulerSettings,
)
from qeff_zoo.tasks.diffusion.schedulers.flow_match import (
    FlowMatchEulerScheduler,
    FlowMatchSettings,
)
from qeff_zoo.tasks.diffusion.schedulers.heun import HeunScheduler, HeunSettings
from qeff_zoo.tasks.diffusion.schedulers.lcm import LcmScheduler, LcmSettings
from qeff_zoo.tasks.diffusion.schedulers.pndm import PndmScheduler, PndmSettings
from qeff_zoo.tasks.diffusion.schedulers.scheduler import Run, Scheduler, single
from qeff_zoo.tasks.diffusion.schedulers.settings import Settings, read_settings, types_of
from qeff_zoo.tasks.diffusion.schedulers.unipc import UnipcScheduler, UnipcSettings


@dataclass(frozen=True)
class Method:
    """A class of diffusers: its settings, and the scheduler that computes the same.

    Args:
        settings: Dataclass of the settings.
        scheduler: Class of the scheduler, called with settings and a run.
    """

    settings: type[Settings]
    scheduler: Callable[[Any, Run], Scheduler]


#: Schedulers by the name of diffusers' class.
METHODS = {
    "DDIMScheduler": Method(DdimSettings, DdimScheduler),
    "DDPMScheduler": Method(DdpmSettings, DdpmScheduler),
    "DPMSolverMultistepScheduler": Method(DpmSolverSettings, DpmSolverScheduler),
    "EDMDPMSolverMultistepScheduler": Method(EdmDpmSettings, EdmDpmScheduler),
    "EulerAncestralDiscreteScheduler": Method(EulerAncestralSettings, EulerAncestralScheduler),
    "EulerDiscreteScheduler": Method(EulerSettings, EulerScheduler),
    "FlowMatchEulerDiscreteScheduler": Method(FlowMatchSettings, FlowMatchEulerScheduler),
    "HeunDiscreteScheduler": Method(HeunSettings, HeunScheduler),
    "LCMScheduler": Method(LcmSettings, LcmScheduler),
    "PNDMScheduler": Method(PndmSettings, PndmScheduler),
    "UniPCMultistepScheduler": Method(UnipcSettings, UnipcScheduler),
}

#: Settings of the shift at two numbers of image tokens, with the values of pipelines for configurations without them.
_SHIFT = {
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}


def open_scheduler(
    config: Mapping[str, Any],
    steps: int,
    *,
    length: int | None = None,
    sigmas: Sequence[float] | None = None,
    mu: float | None = None,
) -> Scheduler:
    """Return the scheduler of a configuration for one run.

    Args:
        config: Content of `scheduler/scheduler_config.json`. The class is `_class_name`; a pipeline's
            `model_index.json` may name another one, which the caller puts in its place.
        steps: Number of steps.
        length: Number of image tokens, of which dynamic shifting computes `mu` as most pipelines do.
        sigmas: Noise levels that a pipeline gives in place of the configuration's.
        mu: Logarithm of the time shift, for pipelines that compute it otherwise; used by dynamic shifting alone.

    Raises:
        UnsupportedModelError: The class, a setting or a value is unknown, or not computed.
        GenerationError: The number of steps, or the noise levels, do not fit the configuration, or a sample would not
            be finite.
    """
    name, settings = read_config(config)
    _check_steps(steps, settings)
    if not getattr(settings, "use_dynamic_shifting", False):
        mu = None  # pipelines give it to every scheduler
    elif mu is None:
        mu = _mu(config, length)
    run = Run(steps=steps, mu=mu, sigmas=None if sigmas is None else tuple(map(float, sigmas)))
    _check_finite(name, METHODS[name].scheduler(settings, run), settings)
    return METHODS[name].scheduler(settings, run)


def read_config(config: Mapping[str, Any]) -> tuple[str, Settings]:
    """Return the class and the settings of a configuration, without a run.

    Args:
        config: See `open_scheduler`.

    Raises:
        UnsupportedModelError: See `open_scheduler`.
    """
    name = config.get("_class_name")
    if not isinstance(name, str) or name not in METHODS:
        near = did_you_mean(name, METHODS) if isinstance(name, str) else ""
        raise UnsupportedModelError(
            f"Cannot use the scheduler {name!r}: expected one of {', '.join(sorted(METHODS))}.{near}"
            " Choose one of them in scheduler/scheduler_config.json."
        )
    foreign = set().union(*(types_of(method.settings) for method in METHODS.values()))
    return name, read_settings(METHODS[name].settings, config, foreign, name)


def _check_steps(steps: int, settings: Any) -> None:
    most = settings.num_train_timesteps
    if type(steps) is not int or not 1 <= steps <= most:
        raise GenerationError(
            f"Cannot run {steps!r} steps: expected an integer from 1 to {most}, the number of training times."
            " Change the number of steps."
        )


def _check_finite(name: str, scheduler: Scheduler, settings: Settings) -> None:
    """Run all calls on one number, and refuse a schedule that ends in no number.

    Raises:
        GenerationError: A sample is infinite or not a number.
    """
    channels = 2 if getattr(settings, "variance_type", None) in ("learned", "learned_range") else 1
    output = single(np.full((1, channels, 1, 1), 0.25))
    sample = single(np.full((1, 1, 1, 1), scheduler.initial_sigma))
    for call, time in enumerate(scheduler.timesteps):
        with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
            sample = scheduler.step(output, call, sample, lambda shape: single(np.zeros(shape)))[
                :, :1
            ]
            if np.isfinite(sample).all() and np.isfinite(time):
                continue
        raise GenerationError(
            f"Cannot run {len(scheduler.timesteps)} calls of {name}: the sample after call {call} is not finite with"
            f" this configuration, in diffusers as well. Expected finite samples. Change the number of steps, or"
            f" settings of the noise: {_noise_settings(settings)}."
        )


def _noise_settings(settings: Any) -> str:
    """Return the settings that make a schedule infinite if they do not fit each other."""
    names = (
        *(
            "prediction_type",
            "rescale_betas_zero_snr",
            "final_sigmas_type",
            "solver_type",
            "algorithm_type",
        ),
        *("use_flow_sigmas", "use_karras_sigmas", "lower_order_final", "beta_end"),
    )
    return ", ".join(
        f"{name!r} {getattr(settings, name)!r}" for name in names if hasattr(settings, name)
    )


def _mu(config: Mapping[str, Any], length: int | None) -> float:
    """Return the logarithm of the time shift, which is linear in the number of image tokens.

    Raises:
        GenerationError: There is no number of image tokens.
        UnsupportedModelError: The settings of the shift are no numbers, or no range.
    """
    if length is None:
        raise GenerationError(
            "Cannot shift the times by the image's size ('use_dynamic_shifting'): its number of tokens is None."
            " Expected a number. Pass `length` or `mu`."
        )
    shift = {name: config.get(name, value) for name, value in _SHIFT.items()}
    low, high, least, most = shift.values()
    if not all(type(value) in (int, float) for value in shift.values()) or least == most:
        raise UnsupportedModelError(
            f"Cannot shift the times by the image's size: the settings are {shift}. Expected numbers, and two lengths."
            " Change scheduler/scheduler_config.json."
        )
    slope = (high - low) / (most - least)
    return float(length * slope + (low - slope * least))
