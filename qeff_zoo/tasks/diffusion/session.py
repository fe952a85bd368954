# SPDX-License-Identifier: Apache-2.0
"""Session of a text-to-image package: texts in, images out."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo import registry
from qeff_zoo.checkpoint.pipeline_files import read_pipeline
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.tasks.diffusion.family import Conditions, Family, family_of
from qeff_zoo.tasks.diffusion.noise import NoiseGenerator
from qeff_zoo.tasks.diffusion.options import GeneratedImage, ImageOptions
from qeff_zoo.tasks.diffusion.prompts import Prompts
from qeff_zoo.tasks.diffusion.schedulers import open_scheduler
from qeff_zoo.tasks.diffusion.text_to_image import NAME

#: Folder of the tokenizer of each text encoder, by role.
_TOKENIZERS = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}


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


class TextToImageSession:
    """An opened package of the task `text-to-image`.

    Args:
        folder: The package.
        program: Opened decoder of the VAE.
        **programs: Opened text encoders, and the model that removes noise, by role.

    Raises:
        GenerationError: The package is of another task.
        PackageError: The package lacks files of its pipeline.

    Example:
        >>> session = qeff_zoo.load("packages/stable-diffusion-v1-5")  # doctest: +SKIP
        >>> image = session.draw("a cat in the rain", seed=0, steps=20)  # doctest: +SKIP
        >>> Path("cat.png").write_bytes(image.as_png())  # doctest: +SKIP
        412345
    """

    task = NAME

    def __init__(self, folder: Path, program: Program, **programs: Program) -> None:
        require(program, folder, self.task, {"latent_sample"}, {"sample"})
        self.folder = folder
        self.programs: dict[str, Program] = {"vae_decoder": program, **programs}
        self.tokenizer = None  # of text generation
        self.config = read_pipeline(_Small(folder))
        pipeline = registry.find_recipe(self.config["model_type"]).pipeline
        if pipeline is None:
            raise PackageError(
                f"{str(folder)!r} has the pipeline {self.config['model_type']!r}, which has no family; expected one of "
                "diffusers' pipelines with a recipe. Build the package again."
            )
        self.family: Family = family_of(self.config, pipeline.family)
        components = self.config["components"]
        #: Tokenizers by the role of their encoder; their `length` may be set.
        self.prompts = {
            role: Prompts(folder / tokenizer, components[role], self.family.lengths.get(role))
            for role, tokenizer in _TOKENIZERS.items()
            if role in self.programs
        }

    def options(self, **chosen: Any) -> ImageOptions:
        """Return the options of an image; those that are left out or None are the pipeline's.

        Args:
            **chosen: Fields of `ImageOptions`.

        Raises:
            GenerationError: A value is out of its range.
        """
        height, width = self.family.size
        usual = {
            "seed": int(np.random.SeedSequence().generate_state(1)[0]),
            "steps": self.family.steps,
            "guidance_scale": self.family.guidance_scale,
            "height": height,
            "width": width,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        if unknown := given.keys() - {field.name for field in fields(ImageOptions)}:
            known = ", ".join(field.name for field in fields(ImageOptions))
            raise GenerationError(
                f"Images have no option {min(unknown)!r}; expected {known}. Leave it out."
            )
        options = ImageOptions(**{**usual, **given})
        self.family.check(options)
        return options

    def draw(self, prompt: str, **chosen: Any) -> GeneratedImage:
        """Return an image of a text.

        Args:
            prompt: The text.
            **chosen: Fields of `ImageOptions`; the defaults are the pipeline's, and the seed is random.

        Raises:
            GenerationError: An option is out of its range.
        """
        return self.draw_all([prompt], self.options(**chosen))[0]

    def draw_all(
        self,
        prompts: Sequence[str],
        options: ImageOptions,
        advance: Callable[[], object] = lambda: None,
    ) -> list[GeneratedImage]:
        """Return an image of each text, one after the other, all with the same options.

        Args:
            prompts: The texts.
            options: Options of every image.
            advance: Callback after every step.
        """
        read = [self.conditions(prompt, options) for prompt in prompts]
        return [self._draw(conditions, options, advance) for conditions in read]

    def _draw(
        self,
        conditions: Sequence[Conditions],
        options: ImageOptions,
        advance: Callable[[], object],
    ) -> GeneratedImage:
        samples = []
        for sample in self.denoise(conditions, options):
            samples = [sample]
            advance()
        return GeneratedImage(pixels=self.decode(samples[0], options), options=options)

    def conditions(
        self,
        prompt: str,
        options: ImageOptions,
        warn: Callable[[str], object] = warnings.warn,
    ) -> list[Conditions]:
        """Return the conditions of the negative prompt, if the image is guided, and of the prompt.

        Args:
            prompt: The text.
            options: Options of the image.
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

    def denoise(self, conditions: Sequence[Conditions], options: ImageOptions) -> Iterator[Array]:
        """Yield the sample after every call of the model.

        Args:
            conditions: See `conditions`.
            options: Options of the image.
        """
        draw = NoiseGenerator(options.seed)
        scheduler = open_scheduler(
            self.family.scheduler, options.steps, **self.family.schedule(options)
        )
        begun = self.family.begin(draw(self.family.noise_shape(options)), options)
        sample: Array = begun * np.float32(scheduler.initial_sigma)
        run = self.programs[self.family.denoiser].run
        for call, timestep in enumerate(scheduler.timesteps):
            given = scheduler.model_input(sample, call)
            output = self.family.predict(run, given, float(timestep), conditions, options)
            sample = scheduler.step(output, call, sample, draw)
            yield sample

    def image_of(self, sample: Array, options: ImageOptions) -> Array:
        """Return the image of the last sample, float32 (3, height, width) from 0 to 1.

        Args:
            sample: See `denoise`.
            options: Options of the image.

        Raises:
            GenerationError: Values are not finite.
        """
        latents = self.family.latents_of(sample, options)
        image = self.programs["vae_decoder"].run({"latent_sample": latents})["sample"][0]
        if not np.isfinite(image).all():
            raise GenerationError(
                "The image has values that are not finite; expected numbers. Build the package with other options, "
                "such as float32 weights."
            )
        scaled: Array = np.clip(image * np.float32(0.5) + np.float32(0.5), 0, 1)
        return scaled

    def decode(self, sample: Array, options: ImageOptions) -> Array:
        """Return the pixels of the last sample, uint8 (height, width, 3); see `image_of`."""
        image = self.image_of(sample, options).transpose(1, 2, 0)
        pixels: Array = (image * 255).round().astype(np.uint8)
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
