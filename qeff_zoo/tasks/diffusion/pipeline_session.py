# SPDX-License-Identifier: Apache-2.0
"""Base of sessions of diffusers' pipelines: programs, tokenizers and family of a package, and the steps of a run."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np

from qeff_zoo import registry
from qeff_zoo.checkpoint.pipeline_files import read_pipeline
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.tasks.diffusion.family import (
    Conditions,
    Family,
    OptionsT,
    family_of,
    run_with_channels,
)
from qeff_zoo.tasks.diffusion.noise import NoiseGenerator
from qeff_zoo.tasks.diffusion.parts import TOKENIZERS
from qeff_zoo.tasks.diffusion.prompts import Prompts
from qeff_zoo.tasks.diffusion.schedulers import Scheduler, open_scheduler


@dataclass(frozen=True)
class TextEncoder:
    """Text encoder of a package.

    Args:
        program: Opened program.
        prompts: Tokenizer of the encoder.
        warn: Function that gets a sentence for each text that is too long.
    """

    program: Program
    prompts: Prompts
    warn: Callable[[str], object]

    def __call__(self, text: str) -> Mapping[str, Array]:
        """Return the outputs of the encoder for a text; the first axis is 1."""
        return self.program.run({"input_ids": self.prompts.encode(text, self.warn)})


class PipelineSession(Generic[OptionsT]):
    """An opened package of a pipeline.

    Args:
        folder: The package.
        program: Opened decoder of the VAE.
        **programs: Opened text encoders, the models that remove noise, and further programs, by role.

    Raises:
        GenerationError: The package is of another task.
        PackageError: The package lacks files of its pipeline.
    """

    #: Task of the packages, and its options of a run.
    task: ClassVar[str]
    options_type: ClassVar[type[Any]]
    #: Word for a result, in messages.
    results: ClassVar[str]

    def __init__(
        self, folder: Path, program: Program, **programs: Program | Callable[[], Program]
    ) -> None:
        require(program, folder, self.task, {"latent_sample"}, {"sample"})
        self.folder = folder
        #: Programs by role; those of optional components open here.
        self.programs: dict[str, Program] = {
            "vae_decoder": program,
            **{role: one() if callable(one) else one for role, one in programs.items()},
        }
        self.tokenizer = None  # of text generation
        self.config = read_pipeline(_Small(folder))
        pipeline = registry.find_recipe(self.config["model_type"]).pipeline
        if pipeline is None:
            raise PackageError(
                f"{str(folder)!r} has the pipeline {self.config['model_type']!r}, which has no family; expected one of "
                "diffusers' pipelines with a recipe. Build the package again."
            )
        self.family: Family[OptionsT] = family_of(self.config, pipeline.family)
        components = self.config["components"]
        #: Tokenizers by the role of their encoder; their `length` may be set.
        self.prompts = {
            role: Prompts(
                folder / tokenizer,
                components[role],
                self.family.lengths.get(role),
                clean=self.family.cleaned,
                padded=self.family.pads_prompts,
            )
            for role, tokenizer in TOKENIZERS.items()
            if role in self.programs
        }

    def _options(self, usual: Mapping[str, Any], chosen: Mapping[str, Any]) -> OptionsT:
        """Return options; those that are left out or None are the pipeline's.

        Args:
            usual: Options of the kind of run.
            chosen: Options by name.

        Raises:
            GenerationError: A value is out of its range, or there is no such option.
        """
        height, width = self.family.size
        defaults = {
            "seed": int(np.random.SeedSequence().generate_state(1)[0]),
            "steps": self.family.steps,
            "guidance_scale": self.family.guidance_scale,
            "height": height,
            "width": width,
        }
        names = [field.name for field in fields(self.options_type)]
        given = {name: value for name, value in chosen.items() if value is not None}
        if unknown := given.keys() - {*names}:
            raise GenerationError(
                f"{self.results} have no option {min(unknown)!r}; expected {', '.join(names)}. Leave it out."
            )
        options: OptionsT = self.options_type(**{**defaults, **usual, **given})
        self.family.check(options)
        return options

    def conditions(
        self,
        prompt: str,
        options: OptionsT,
        warn: Callable[[str], object] = warnings.warn,
    ) -> list[Conditions]:
        """Return the conditions of the negative prompt, if guided, and of the prompt.

        Args:
            prompt: The text.
            options: Options of the image or the video.
            warn: Function that gets a sentence for each text that is too long.
        """
        encoders = {
            role: TextEncoder(self.programs[role], prompts, warn)
            for role, prompts in self.prompts.items()
        }
        positive = self.family.encode(encoders, prompt)
        if not self.family.is_guided(options):
            return [positive]
        return [self.family.encode_negative(encoders, options, positive), positive]

    def values_of(self, sample: Array, options: OptionsT) -> Array:
        """Return what the last sample decodes to, float32 (..., 3, height, width) from 0 to 1.

        Args:
            sample: Sample after the last call of the model.
            options: Options of the run.

        Raises:
            GenerationError: Values are not finite.
        """
        raise NotImplementedError

    def _scheduler(self, options: OptionsT) -> Scheduler:
        further = self.family.schedule(options)
        return open_scheduler(self.family.scheduler, options.steps, **further)

    def _steps(
        self,
        scheduler: Scheduler,
        sample: Array,
        conditions: Sequence[Conditions],
        options: OptionsT,
        draw: NoiseGenerator,
        *,
        first: int = 0,
        channels: Array | None = None,
        keep: Callable[[int, Array], Array] = lambda call, sample: sample,
    ) -> Iterator[Array]:
        """Yield the sample after each call of the model.

        Args:
            scheduler: Scheduler of the run.
            sample: Sample before the first call.
            conditions: See `conditions`.
            options: Options of the run.
            draw: Noise of further steps.
            first: Number of the first call.
            channels: Further channels that the model reads in every call; None for none.
            keep: Function that returns the sample after a call with the parts that are not drawn.
        """
        for call in range(first, len(scheduler.timesteps)):
            timestep = float(scheduler.timesteps[call])
            run = self.programs[self.family.denoiser_at(timestep)].run
            if channels is not None:
                run = partial(run_with_channels, run, self.family.sample_name, channels)
            given = scheduler.model_input(sample, call)
            output = self.family.predict(run, given, timestep, conditions, options)
            sample = keep(call, scheduler.step(output, call, sample, draw))
            yield sample


def finite(values: Array) -> Array:
    """Return outputs of the VAE's decoder, from -1 to 1, as values from 0 to 1.

    Args:
        values: Outputs of the decoder.

    Raises:
        GenerationError: Values are not finite.
    """
    if not np.isfinite(values).all():
        raise GenerationError(
            "The image has values that are not finite; expected numbers. Build the package with other options, such as "
            "float32 weights."
        )
    scaled: Array = np.clip(values * np.float32(0.5) + np.float32(0.5), 0, 1)
    return scaled


def bytes_of(values: Array) -> Array:
    """Return pixels, uint8, of values from 0 to 1."""
    pixels: Array = (values * 255).round().astype(np.uint8)
    return pixels


class _Small(Mapping[str, Path]):
    """Files of a folder by relative path.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        if not (self._folder / name).is_file():
            raise KeyError(name)
        return self._folder / name

    def __iter__(self) -> Iterator[str]:
        found = (path for path in self._folder.rglob("*") if path.is_file())
        return (path.relative_to(self._folder).as_posix() for path in found)

    def __len__(self) -> int:
        return sum(1 for _ in self)
