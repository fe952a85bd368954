# SPDX-License-Identifier: Apache-2.0
"""Schedulers in numpy, step by step beside diffusers' own, with published configurations and drawn ones."""

import ast
import inspect
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import EVERY

from qeff_zoo.errors import GenerationError, UnsupportedModelError
from qeff_zoo.tasks.diffusion.schedulers import FloatArray, Scheduler, open_scheduler
from qeff_zoo.tasks.diffusion.schedulers.opening import METHODS
from qeff_zoo.tasks.diffusion.schedulers.settings import types_of

diffusers = pytest.importorskip("diffusers")
#: diffusers makes arrays of tensors in a way that numpy 2 deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.algorithm_types dpmsolver and sde-dpmsolver:FutureWarning"),
]

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "published" / "schedulers" / "configs.json").read_text()
)
PUBLISHED = {name: config for name, config in CONFIGS.items() if config["_class_name"] in METHODS}
SHAPE = (2, 3, 4, 5)
LENGTH = 1024
#: Units in the last place of the largest value of a step. All is computed in float32 in diffusers' order, and most
#: steps are equal bit for bit. torch's vectorized exponentials, logarithms and products of matrices differ by a unit
#: between processors: 2 units are the most measured on one, 7 on another with AVX-512.
ULPS = 10
#: The same where almost no signal is left at the first step: its share is a difference of nearly equal numbers, whose
#: last bits differ between processors. It is 1.6 % of the largest value.
FEW_DIGITS = 1 << 17


def loses_digits(config: dict[str, Any]) -> bool:
    """Whether almost no signal is left at the first step."""
    schedule = config.get("beta_schedule")
    return bool(config.get("rescale_betas_zero_snr")) or schedule == "squaredcos_cap_v2"


class Beside:
    """Scheduler of diffusers and ours, for the same configuration, steps and first call."""

    def __init__(self, config: dict[str, Any], steps: int, start: int = 0, **options: Any) -> None:
        self.ours: Scheduler = open_scheduler(config, steps, length=LENGTH, **options)
        self.reference = getattr(diffusers, config["_class_name"]).from_config(config)
        set_timesteps(self.reference, config, steps, **options)
        self.times = self.reference.timesteps
        self.start = start
        if hasattr(self.reference, "set_begin_index"):
            self.reference.set_begin_index(start)
        self.values = np.random.default_rng(7)
        self.config = config

    def compare(self, *, rounding: bool = False) -> Iterator[tuple[float, float]]:
        """Compare all calls; yield the largest difference of each and that of rounded inputs.

        Both are in units in the last place of the largest value.

        Args:
            rounding: Whether diffusers' step is repeated with rounded inputs; else their difference is 0. Times
                may then differ by 1, too.
        """
        assert self.ours.timesteps.dtype == np.float32
        if not rounding:
            assert distance(self.ours.timesteps, self.times.float()) <= 1
        elif not loses_digits(self.config):  # a time that is rounded may become the next one
            assert np.abs(self.ours.timesteps - self.times.float().numpy()).max() <= 1
        sigma = float(getattr(self.reference, "init_noise_sigma", 1.0))
        relative = 1e-2 if loses_digits(self.config) else 1e-6
        assert self.ours.initial_sigma == pytest.approx(sigma, rel=relative)
        yield self.compare_noisy()
        sample = draw(self.values) * np.float32(sigma)
        ours, random = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
        for call in range(self.start, len(self.times)):
            output, time = draw_output(self.config, self.values), self.times[call]
            if hasattr(self.reference, "scale_model_input"):
                scaled = self.reference.scale_model_input(torch.from_numpy(sample), time)
                yield distance(self.ours.model_input(sample, call), scaled), 0
            after = self.ours.step(
                output, call, sample, lambda shape: torch.randn(shape, generator=ours).numpy()
            )
            if rounding:
                rounded = step(
                    deepcopy(self.reference),
                    time,
                    nudged(output, -math.inf),
                    nudged(sample, math.inf),
                    clone(random),
                )
            expected = step(self.reference, time, output, sample, random)
            assert after.dtype == np.float32
            yield distance(after, expected), distance(rounded.numpy(), expected) if rounding else 0
            sample = expected.numpy()  # so that differences do not add up
        assert torch.equal(ours.get_state(), random.get_state())  # equally many values were drawn

    def compare_noisy(self) -> tuple[float, float]:
        """Compare the noisy latents at the first call."""
        original, noise = draw(self.values), draw(self.values)
        time = self.times[self.start : self.start + 1].repeat(SHAPE[0])
        tensors = torch.from_numpy(original), torch.from_numpy(noise)
        if hasattr(self.reference, "add_noise"):
            expected = self.reference.add_noise(*tensors, time)
        else:
            expected = self.reference.scale_noise(tensors[0], time, tensors[1])
        return distance(self.ours.noisy(original, noise, self.start), expected), 0


def draw_output(config: dict[str, Any], values: np.random.Generator) -> FloatArray:
    """Return an output of the denoiser; a learned variance is between 0 and 1."""
    output = draw(values)
    if config["_class_name"] == "DDPMScheduler" and "learned" in config.get("variance_type", ""):
        return np.concatenate([output, np.abs(np.tanh(draw(values)))], 1)
    return output


def step(
    scheduler: Any,
    time: torch.Tensor,
    output: FloatArray,
    sample: FloatArray,
    random: torch.Generator,
) -> torch.Tensor:
    """Return the sample after a step of diffusers."""
    options = (
        {"generator": random} if "generator" in inspect.signature(scheduler.step).parameters else {}
    )
    after: torch.Tensor = scheduler.step(
        torch.from_numpy(output), time, torch.from_numpy(sample), **options
    )[0]
    return after


def clone(random: torch.Generator) -> torch.Generator:
    return torch.Generator().set_state(random.get_state())


def nudged(values: FloatArray, towards: float) -> FloatArray:
    """Return values that differ by one unit in the last place."""
    return np.nextafter(values, np.float32(towards))


def draw(values: np.random.Generator) -> FloatArray:
    return values.standard_normal(SHAPE).astype(np.float32)


def distance(ours: FloatArray, reference: torch.Tensor) -> float:
    """Return the largest difference, in units in the last place of the largest value."""
    expected = reference.numpy()
    assert ours.shape == expected.shape
    assert np.isfinite(expected).all()
    return float(np.abs(ours - expected).max() / np.spacing(np.abs(expected).max()))


def set_timesteps(scheduler: Any, config: dict[str, Any], steps: int, **options: Any) -> None:
    """Set the times as diffusers' pipelines do."""
    known = inspect.signature(scheduler.set_timesteps).parameters
    if config.get("use_dynamic_shifting") and "mu" in known:
        options["mu"] = options.get("mu", calculate_shift(LENGTH, config))
    if "sigmas" in options:
        options["sigmas"] = np.array(options["sigmas"])
    given = "sigmas" in options and config["_class_name"] == "EulerDiscreteScheduler"
    scheduler.set_timesteps(None if given else steps, **options)


def calculate_shift(length: int, config: dict[str, Any]) -> float:
    """Return the shift as Flux's pipeline computes it; importing that takes seconds, hence its source."""
    path = Path(diffusers.__file__).parent / "pipelines" / "flux" / "pipeline_flux.py"
    functions = (
        node
        for node in ast.parse(path.read_text()).body
        if getattr(node, "name", "") == "calculate_shift"
    )
    names: dict[str, Any] = {}
    exec(compile(ast.Module([next(functions)], []), str(path), "exec"), names)
    keys = {
        "base_seq_len": "base_image_seq_len",
        "max_seq_len": "max_image_seq_len",
        "base_shift": "base_shift",
        "max_shift": "max_shift",
    }
    values = {key: config[name] for key, name in keys.items() if name in config}
    return float(names["calculate_shift"](length, **values))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("steps", [1, 2, 4, 20, 50])
@pytest.mark.parametrize("name", PUBLISHED)
def test_steps_equal_those_of_diffusers(name: str, steps: int) -> None:
    if steps == 1 and PUBLISHED[name].get("shift_terminal"):
        with pytest.raises(GenerationError, match="the last of 1 is 1"):  # diffusers divides 0 by 0
            open_scheduler(PUBLISHED[name], steps, length=LENGTH)
        return
    calls = len(open_scheduler(PUBLISHED[name], steps, length=LENGTH).timesteps)
    order = 2 if PUBLISHED[name]["_class_name"] == "HeunDiscreteScheduler" else 1  # calls of a step
    for start in sorted({0, calls // 3 // order * order, calls - 1}):
        for difference, _ in Beside(PUBLISHED[name], steps, start).compare():
            assert difference <= ULPS


#: Values of settings that are numbers or lists.
NUMBERS: dict[str, list[Any]] = {
    "num_train_timesteps": [1000, 1000, 100, 37],
    "beta_start": [0.0001, 0.00085, 0.0015],
    "beta_end": [0.02, 0.012, 0.0195],
    "steps_offset": [0, 1],
    "sigma_min": [None, 0.002, 0.05],
    "sigma_max": [None, 80.0, 10.0],
    "dynamic_thresholding_ratio": [0.995, 0.5, 0.9],
    "sample_max_value": [1.0, 1.5, 3.0],
    "clip_sample_range": [1.0, 0.5, 2.0],
    "original_inference_steps": [50, 20],
    "timestep_scaling": [10.0, 1.0, 0.1],
    "shift": [1.0, 3.0, 0.5, 7.0],
    "base_shift": [0.5, 0.95],
    "max_shift": [1.15, 2.05, 0.9],
    "base_image_seq_len": [256, 1024],
    "max_image_seq_len": [4096, 8192],
    "shift_terminal": [None, 0.02, 0.1, 0.0],
    "solver_order": [1, 2, 3],
    "flow_shift": [1.0, 3.0, 5.0, 0.5],
    "sigma_data": [0.5, 1.0, 0.3],
    "rho": [7.0, 5.0, 2.0],
    "lambda_min_clipped": [-math.inf, -5.1, -2.0],
    "trained_betas": [None],
    "disable_corrector": [[], [0], [1, 2]],
    "solver_p": [None],
}


def values_of(name: str, kind: Any) -> list[Any]:
    """Return values of a setting; switches are mostly off."""
    if name in NUMBERS:
        return NUMBERS[name]
    if get_origin(kind) is Literal:
        return [*get_args(kind)]
    if kind is bool or bool in get_args(kind):
        return [False, False, True]
    return [value for part in get_args(kind) for value in (get_args(part) or [None])]


@st.composite
def configs(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Draw a configuration; each setting may be absent."""
    config: dict[str, Any] = {"_class_name": name}
    for setting, kind in types_of(METHODS[name].settings).items():
        if draw(st.booleans()):
            config[setting] = draw(st.sampled_from(values_of(setting, kind)))
    return config


@pytest.mark.parametrize("name", METHODS)
@given(
    data=st.data(),
    steps=st.sampled_from([1, 2, 3, 4, 7, 14, 15, 20]),
    place=st.sampled_from([0, 0.3, 0.99]),
)
@settings(max_examples=500 if EVERY else 5, deadline=None)
def test_every_setting_is_computed_or_refused(
    name: str, data: st.DataObject, steps: int, place: float
) -> None:
    """What is refused fails in diffusers, or ends in no number there."""
    config = data.draw(configs(name))
    try:
        calls = len(open_scheduler(config, steps, length=LENGTH).timesteps)
    except (GenerationError, UnsupportedModelError) as error:
        calls, message = 0, str(error)
    if not calls:  # few steps never reach the third order that diffusers lacks
        assert "has no order 3" in message or not finite_in_diffusers(config, steps)
        return
    from_middle = name != "PNDMScheduler" or config.get(
        "skip_prk_steps"
    )  # Runge-Kutta's start is the first call
    start = int(place * calls) if from_middle else 0
    if name == "HeunDiscreteScheduler":
        start -= start % 2  # a step's first call
    for difference, of_rounding in Beside(config, steps, start).compare(rounding=True):
        # 518 was measured, of a system of three equations.
        most = FEW_DIGITS if loses_digits(config) else 100 * ULPS
        assert difference <= most + 8 * of_rounding


def finite_in_diffusers(config: dict[str, Any], steps: int) -> bool:
    try:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(sample_of_diffusers(config, steps)).all())
    except (ValueError, IndexError, ZeroDivisionError, TypeError, RuntimeError, UnboundLocalError):
        return False


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_those_of_diffusers(name: str) -> None:
    """A setting of a newer version fails here, so that none is skipped."""
    known = inspect.signature(getattr(diffusers, name).__init__).parameters
    defaults = {key: value.default for key, value in known.items() if key != "self"}
    settings = METHODS[name].settings()
    assert types_of(METHODS[name].settings).keys() == defaults.keys()
    for key, default in defaults.items():
        ours = getattr(settings, key)
        assert (list(ours) if isinstance(ours, tuple) else ours) == default, key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "KDPM2DiscreteScheduler"}, "expected one of DDIMScheduler"),
        ({"_class_name": "DDIMSheduler"}, "Did you mean 'DDIMScheduler'?"),
        ({"_class_name": None}, "Cannot use the scheduler None"),
        (
            {"prediction_type": "flow_prediction"},
            "expected 'epsilon' or 'sample' or 'v_prediction'",
        ),
        ({"beta_schedule": "sigmoid"}, "Setting 'beta_schedule' is 'sigmoid'"),
        ({"timestep_spacing": ["leading"]}, "Setting 'timestep_spacing' is .'leading'.; expected"),
        ({"clip_sample": 1}, "Setting 'clip_sample' is 1; expected true or false"),
        ({"steps_offset": True}, "Setting 'steps_offset' is True; expected an integer"),
        ({"beta_end": "0.02"}, "Setting 'beta_end' is '0.02'; expected a number"),
        ({"beta_start": float("nan")}, "Setting 'beta_start' is nan"),
        ({"beta_start": -0.1}, "expected a number between 0 and 1"),
        ({"trained_betas": [0.1, 0.2]}, "has 2 values; expected 1000"),
        ({"num_train_timesteps": 0}, "expected 1 to 1000000"),
        ({"num_train_timesteps": 10**9}, "expected 1 to 1000000"),
        ({"use_uniform_sigmas": True}, "Setting 'use_uniform_sigmas' is unknown"),
        ({"tresholding": True}, "Did you mean 'thresholding'?"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        open_scheduler({**CONFIGS["stable-diffusion-2-1"], **change}, 4)


@pytest.mark.parametrize("steps", [0, -1, 1001, 2.0, True, "4"])
def test_a_wrong_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(GenerationError, match="expected an integer from 1 to 1000"):
        open_scheduler(CONFIGS["stable-diffusion-2-1"], steps)


def test_times_beyond_training_are_refused() -> None:
    with pytest.raises(GenerationError, match="are not within the training times 0 to 999"):
        open_scheduler(CONFIGS["stable-diffusion-2-1"], 1000)


@pytest.mark.parametrize(
    ("name", "change", "steps"),
    [
        ("hunyuan3d-paint", {"prediction_type": "epsilon"}, 4),
        ("pixart-xl-2", {"use_flow_sigmas": True, "use_karras_sigmas": True}, 20),
        ("stable-diffusion-xl", {"beta_end": 0.9}, 4),
    ],
)
def test_a_schedule_that_ends_in_no_number_is_refused(
    name: str, change: dict[str, Any], steps: int
) -> None:
    config = {**CONFIGS[name], **change}
    with pytest.raises(GenerationError, match="not finite with this configuration"):
        open_scheduler(config, steps)
    assert not np.isfinite(sample_of_diffusers(config, steps)).all()


def sample_of_diffusers(config: dict[str, Any], steps: int) -> FloatArray:
    """Return the last sample of diffusers, for random outputs."""
    scheduler = getattr(diffusers, config["_class_name"]).from_config(config)
    set_timesteps(scheduler, config, steps)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(
            0
        )  # else equal times, which Karras's levels may have, are skipped
    values = np.random.default_rng(7)
    sample = draw(values) * np.float32(getattr(scheduler, "init_noise_sigma", 1.0))
    for time in scheduler.timesteps:
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(torch.from_numpy(sample), time)
        output = draw_output(config, values)
        sample = step(scheduler, time, output, sample, torch.Generator().manual_seed(5)).numpy()
    return sample


def test_a_runge_kutta_start_needs_four_steps() -> None:
    with pytest.raises(GenerationError, match="needs 4"):
        open_scheduler({**CONFIGS["stable-diffusion-v1-5"], "skip_prk_steps": False}, 3)


def test_a_runge_kutta_start_is_not_left_out() -> None:
    config = CONFIGS["stable-diffusion-v1-5"]
    assert open_scheduler(config, 4).call_of(2) == 2
    start = open_scheduler({**config, "skip_prk_steps": False}, 4)
    assert start.call_of(0) == 0
    with pytest.raises(GenerationError, match="Cannot leave out the first 2 steps"):
        start.call_of(2)


FLOW_SIGMAS = [1.0, 0.75, 0.5, 0.25]  # as the pipelines of Flux and Qwen-Image give them


@pytest.mark.parametrize(
    ("name", "steps", "sigmas"),
    [
        ("flux-1-dev", 4, FLOW_SIGMAS),
        ("flux-1-schnell", 4, FLOW_SIGMAS),
        ("qwen-image", 4, FLOW_SIGMAS),
        ("wan-2-1", 4, FLOW_SIGMAS),
        ("stable-diffusion-xl", 3, [14.6, 6.5, 0.7, 0.0]),
    ],
)
def test_given_sigmas_replace_those_of_the_configuration(
    name: str, steps: int, sigmas: list[float]
) -> None:
    beside = Beside(CONFIGS[name], steps, sigmas=sigmas)
    assert len(beside.ours.timesteps) == steps
    for difference, _ in beside.compare():
        assert difference <= ULPS


@pytest.mark.parametrize("name", ["flux-1-dev", "qwen-image"])
def test_a_given_shift_replaces_that_of_the_length(name: str) -> None:
    for difference, _ in Beside(CONFIGS[name], 4, mu=2.02).compare():
        assert difference <= ULPS
    usual, given = (
        open_scheduler(CONFIGS[name], 4, length=LENGTH),
        open_scheduler(CONFIGS[name], 4, mu=2.02),
    )
    assert not np.allclose(usual.timesteps, given.timesteps)


@pytest.mark.parametrize("change", [{"base_shift": None}, {"max_image_seq_len": 256}])
def test_a_shift_without_numbers_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="Expected numbers, and two lengths"):
        open_scheduler({**CONFIGS["flux-1-dev"], **change}, 4, length=LENGTH)


def test_a_shift_has_no_effect_without_dynamic_shifting() -> None:
    for name in ("flux-1-schnell", "sana"):
        usual, given = open_scheduler(CONFIGS[name], 4), open_scheduler(CONFIGS[name], 4, mu=2.02)
        assert np.array_equal(usual.timesteps, given.timesteps)


def test_a_larger_image_is_shifted_towards_noise() -> None:
    small, large = (
        open_scheduler(CONFIGS["flux-1-dev"], 4, length=length) for length in (256, 4096)
    )
    assert (large.timesteps[1:] > small.timesteps[1:]).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flux-1-dev", {}, "Pass `length` or `mu`"),
        ("flux-1-schnell", {"sigmas": [1.0, 0.5]}, "Cannot use 2 sigmas for 4 steps"),
        ("wan-2-1", {"sigmas": [1.0, 0.5]}, "Cannot use 2 sigmas for 4 steps"),
        (
            "stable-diffusion-xl",
            {"sigmas": [14.6, 2.0, 0.5, 0.0]},
            "expected 5, the last for the end",
        ),
        (
            "stable-diffusion-v1-5",
            {"sigmas": [1.0] * 4},
            "Cannot use given sigmas with PNDMScheduler",
        ),
        (
            "pixart-xl-2",
            {"sigmas": [1.0] * 4},
            "Cannot use given sigmas with DPMSolverMultistepScheduler",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        open_scheduler(CONFIGS[name], 4, **options)


def test_learned_variance_needs_all_channels() -> None:
    config = {**CONFIGS["ddpm-butterflies-128"], "variance_type": "learned_range"}
    sample = draw(np.random.default_rng(7))
    with pytest.raises(GenerationError, match="from an output of 3 channels: expected 6"):
        open_scheduler(config, 4).step(sample, 0, sample, lambda shape: np.zeros(shape, np.float32))


def test_a_wrong_time_is_noticed() -> None:
    """A scheduler whose steps offset is forgotten differs by far more than the tolerance."""
    beside = Beside(CONFIGS["stable-diffusion-v1-5"], 20)
    beside.ours = open_scheduler({**CONFIGS["stable-diffusion-v1-5"], "steps_offset": 0}, 20)
    beside.ours.timesteps = beside.times.float().numpy()
    assert max(difference for difference, _ in beside.compare()) > 40 * ULPS
