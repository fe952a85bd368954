# SPDX-License-Identifier: Apache-2.0
"""Base of pipeline families: what sets pipelines apart between their text encoders and their scheduler, in numpy."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.options import ImageOptions, VideoOptions

#: Inputs of the model that removes noise for one text, by name; the first axis is 1.
Conditions: TypeAlias = Mapping[str, Array]
#: Options of a run: those of an image, or of a video.
OptionsT = TypeVar("OptionsT", bound=ImageOptions)
#: Runs a program.
Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class Encodes(Protocol):
    """Text encoder of a pipeline."""

    def __call__(self, text: str) -> Mapping[str, Array]:
        """Return the outputs of the encoder for a text; the first axis is 1."""


class Family(Generic[OptionsT]):
    """A family of pipelines; the module of a family defines `FAMILY`, a subclass.

    Args:
        config: Configuration of the pipeline, with those of its components.
    """

    #: Role of the program that removes noise, and name of its input that has the sample.
    denoiser: ClassVar[str]
    sample_name: ClassVar[str] = "sample"
    #: Whether prompts are padded to the length that their encoder reads.
    pads_prompts: ClassVar[bool] = True
    #: Default number of steps, and default scale of guidance.
    steps: ClassVar[int]
    guidance_scale: ClassVar[float]
    #: Lengths of prompts by the role of their encoder, if the tokenizer's settings are not those of the pipeline.
    lengths: ClassVar[Mapping[str, int]] = {}
    #: Options of an image that a negative prompt has an effect on.
    guided: ClassVar[Mapping[str, Any]] = {}
    #: Default options of an image that begins with another one, and with a mask of that: those of their pipelines.
    of_images: ClassVar[Mapping[str, Any]]
    of_masks: ClassVar[Mapping[str, Any]]

    #: Whether the model that removes noise reads a mask, and latents of the image without its masked part: it draws
    #: these parts of images alone.
    reads_masks: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.components: Mapping[str, Mapping[str, Any]] = config["components"]

    @property
    def vae_factor(self) -> int:
        """Pixels on a side for each latent."""
        return int(2 ** (len(self.components["vae"]["block_out_channels"]) - 1))

    @property
    def unit(self) -> int:
        """Number of pixels of which height and width are multiples."""
        raise NotImplementedError

    @property
    def size(self) -> tuple[int, int]:
        """Default height and width."""
        raise NotImplementedError

    def sizes(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a step for one default image, by symbol: rows for both prompts, text, and latents.

        Args:
            tokens: Number of tokens of a prompt, by text encoder; the model reads the states of the last.
        """
        height, width = (side // self.vae_factor for side in self.size)
        sides = {"latent_height": height, "latent_width": width}
        return {"batch_size": 2, "seq_len": [*tokens.values()][-1], **sides}

    def decoder_sizes(self) -> dict[str, int]:
        """Return sizes of the decoder of the VAE for one default image beside those of latents, by symbol."""
        return {}

    def encoder_sizes(self) -> dict[str, int]:
        """Return sizes of the encoder of the VAE for one default image beside those of the image, by symbol."""
        return {}

    @property
    def scheduler(self) -> Mapping[str, Any]:
        """Configuration of the scheduler, as the pipeline changes it."""
        found = self.components["scheduler"]
        return {name: value for name, value in found.items() if name != "_library"}

    def problems(self) -> list[str]:
        """Return why the model that removes noise cannot be built, a phrase each that follows the checkpoint's name."""
        return []

    def check(self, options: OptionsT) -> None:
        """Refuse options that the pipeline does not have.

        Raises:
            GenerationError: There is such an option.
        """
        options.check(self.unit)
        if options.true_cfg_scale != 1:
            raise GenerationError(
                f"true_cfg_scale is {options.true_cfg_scale!r}, and the model's guidance is guidance_scale; expected "
                "that alone. Leave true_cfg_scale out."
            )

    @property
    def lost_with_masks(self) -> str:
        """Settings of the VAE that diffusers' inpainting leaves out of latents; empty for none."""
        return ""

    def check_inputs(self, *, has_mask: bool) -> None:
        """Refuse an image without a mask, if the model draws masked parts alone.

        Args:
            has_mask: Whether there is an initial image with a mask.

        Raises:
            GenerationError: There is no mask.
        """
        if self.reads_masks and not has_mask:
            raise GenerationError(
                "The model draws masked parts of images anew, and there is no mask; expected an image and a mask. Give "
                "both, or use a checkpoint that draws images of texts."
            )

    def check_initial_image(self, options: OptionsT, *, has_mask: bool) -> None:
        """Refuse options of an initial image that leave no step, or that the pipeline does not have.

        Args:
            options: Options of the image.
            has_mask: Whether there is a mask.

        Raises:
            GenerationError: There is such an option, or there is a mask, with which diffusers computes other latents.
        """
        if has_mask and (lost := self.lost_with_masks):
            raise GenerationError(
                f"A mask is given, and the VAE has {lost}, which diffusers' inpainting leaves out; expected an image "
                "without a mask. Leave the mask out."
            )
        if self.skipped_steps(options) >= options.steps:
            raise GenerationError(
                f"strength is {options.strength!r}, which leaves none of {options.steps} steps; expected a share of at "
                "least one step. Raise strength, or steps."
            )
        if options.mask_blur is not None and not has_mask:
            raise GenerationError(
                f"mask_blur is {options.mask_blur!r}, and there is no mask; expected one. Give a mask, or leave it out."
            )

    def skipped_steps(self, options: OptionsT) -> int:
        """Return the number of first steps that an initial image leaves out."""
        assert options.strength is not None
        return options.steps - min(int(options.steps * options.strength), options.steps)

    def denoiser_at(self, timestep: float) -> str:
        """Return the role of the program that removes noise at a timestep."""
        return self.denoiser

    def cleaned(self, text: str) -> str:
        """Return a prompt as its encoder's tokenizer reads it."""
        return text

    def is_guided(self, options: OptionsT) -> bool:
        """Whether a step also predicts noise without the prompt."""
        return options.guidance_scale > 1

    def noise_shape(self, options: OptionsT) -> tuple[int, ...]:
        """Return the shape of the noise that an image begins with."""
        raise NotImplementedError

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the conditions of a prompt.

        Args:
            encoders: Text encoders by role.
            text: The prompt.
        """
        raise NotImplementedError

    def encode_negative(
        self, encoders: Mapping[str, Encodes], options: OptionsT, positive: Conditions
    ) -> Conditions:
        """Return the conditions of the negative prompt, by default an empty text.

        Args:
            encoders: Text encoders by role.
            options: Options of the image.
            positive: Conditions of the prompt.
        """
        return self.encode(encoders, options.negative_prompt or "")

    def schedule(self, options: OptionsT) -> dict[str, Any]:
        """Return further arguments of `schedulers.open_scheduler`."""
        return {}

    def begin(self, noise: Array, options: OptionsT) -> Array:
        """Return the sample that an image begins with, in the form that the model takes."""
        return noise

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: OptionsT,
    ) -> Array:
        """Return the output of the model for a step, guided if there are conditions of a negative prompt.

        Args:
            run: Runs the program.
            sample: Sample of the step.
            timestep: Timestep of the step.
            conditions: Conditions of the negative prompt, if guided, and of the prompt.
            options: Options of the image.
        """
        raise NotImplementedError

    def sample_of(self, latents: Array, options: OptionsT) -> Array:
        """Return a sample without noise from the latents of an image, the reverse of `latents_of`."""
        scale, shift = self._scale_and_shift()
        return self.begin(scale * (latents - shift), options)

    def latents_of(self, sample: Array, options: OptionsT) -> Array:
        """Return the input of the VAE's decoder from the last sample."""
        scale, shift = self._scale_and_shift()
        latents: Array = sample / scale + shift
        return latents

    def _scale_and_shift(self) -> tuple[Any, Any]:
        """Return the scale of latents, float32, and their shift before it."""
        config = self.components["vae"]
        return np.float32(config.get("scaling_factor", 0.18215)), np.float32(0)


class FlowFamily(Family[OptionsT]):
    """A family of pipelines whose transformer predicts a velocity, which is integrated over latents with a shift."""

    denoiser = "transformer"
    sample_name = "hidden_states"
    steps = 28

    def skipped_steps(self, options: OptionsT) -> int:
        """Return the number of first steps that an initial image leaves out; parts of a step run as a whole."""
        assert options.strength is not None
        if not options.strength:
            return options.steps
        return int(options.steps - min(options.steps * options.strength, options.steps))

    def _scale_and_shift(self) -> tuple[Any, Any]:
        scale, _ = super()._scale_and_shift()
        return scale, np.float32(self.components["vae"].get("shift_factor") or 0)


class VideoFamily(FlowFamily[VideoOptions]):
    """A family of pipelines that draw videos."""

    #: Default number of frames.
    frames: ClassVar[int]

    @property
    def frame_factor(self) -> int:
        """Frames for each latent but the first, which has one."""
        raise NotImplementedError

    @property
    def frame_rate(self) -> int:
        """Frames per second of the training."""
        raise NotImplementedError

    def channels_of(self, mean: Array, options: VideoOptions) -> Array:
        """Return the channels of an image that the model reads after those of noise, for models that read one.

        Args:
            mean: Mean of the latents of a video whose first frame is the image, and whose others are gray.
            options: Options of the video.
        """
        raise NotImplementedError


def run_with_channels(
    run: Run, name: str, channels: Array, feeds: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Run a program whose sample has further channels, such as a mask.

    Args:
        run: Runs the program.
        name: Name of the input that has the sample.
        channels: Further channels of every row, (1, channels, …).
        feeds: Inputs of the program without them.
    """
    sample = feeds[name]
    rows = np.repeat(channels, len(sample), axis=0)
    return run({**feeds, name: np.concatenate([sample, rows], axis=1)})


def run_guided(
    run: Run,
    sample: tuple[str, Array],
    timestep: float,
    conditions: Sequence[Conditions],
    scale: float,
) -> Array:
    """Return the output of one call for all conditions, (1, …), with guidance if there are two.

    Args:
        run: Runs the program.
        sample: Name of the input that has the sample, and the sample.
        timestep: Timestep of the step.
        conditions: Conditions of the negative prompt, if guided, and of the prompt.
        scale: Scale of guidance.
    """
    (name, values), rows = sample, len(conditions)
    feeds = {
        name: np.concatenate([values] * rows),
        "timestep": np.full(rows, timestep, np.float32),
        **{key: np.concatenate([one[key] for one in conditions]) for key in conditions[0]},
    }
    outputs = run(feeds)["output"]
    if rows == 1:
        return outputs
    without, with_prompt = outputs[:1], outputs[1:]
    found: Array = without + np.float32(scale) * (with_prompt - without)
    return found


def family_of(config: Mapping[str, Any], name: str) -> Family[Any]:
    """Return the family of a pipeline.

    Args:
        config: Configuration of the pipeline, with those of its components.
        name: Module of the family.
    """
    module = importlib.import_module(f"qeff_zoo.tasks.diffusion.families.{name}")
    family: Family[Any] = module.FAMILY(config)
    return family
