# SPDX-License-Identifier: Apache-2.0
"""Session of a text-to-video package: texts in, videos out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions, VideoFamily
from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.noise import NoiseGenerator
from qeff_zoo.tasks.diffusion.options import VideoOptions
from qeff_zoo.tasks.diffusion.pipeline_session import PipelineSession, bytes_of, finite
from qeff_zoo.tasks.video_diffusion.text_to_video import NAME
from qeff_zoo.tasks.video_diffusion.video import GeneratedVideo


class TextToVideoSession(PipelineSession[VideoOptions]):
    """An opened package of the task `text-to-video`.

    Args:
        folder: The package.
        program: Opened decoder of the VAE for the first frame.
        **programs: Opened text encoder, models that remove noise, and decoder of the VAE for other frames, by role.

    Raises:
        GenerationError: The package is of another task.
        PackageError: The package lacks files of its pipeline.

    Example:
        >>> session = qeff_zoo.load("packages/Wan2.1-T2V-1.3B-Diffusers")  # doctest: +SKIP
        >>> video = session.draw("a cat in the rain", seed=0, frames=33)  # doctest: +SKIP
        >>> video.write("cat.mp4")  # doctest: +SKIP
    """

    family: VideoFamily
    task = NAME
    options_type = VideoOptions
    results = "Videos"

    def options(self, **chosen: Any) -> VideoOptions:
        """Return the options of a video; those that are left out or None are the pipeline's.

        Args:
            **chosen: Fields of `VideoOptions`.

        Raises:
            GenerationError: A value is out of its range.
        """
        options = self._options({"frames": self.family.frames}, chosen)
        options.refuse_initial_image()
        return options

    def draw(
        self, prompt: str, advance: Callable[[], object] = lambda: None, **chosen: Any
    ) -> GeneratedVideo:
        """Return a video of a text.

        Args:
            prompt: The text.
            advance: Callback after every step.
            **chosen: Fields of `VideoOptions`; the defaults are the pipeline's, and the seed is random.

        Raises:
            GenerationError: An option is out of its range.
        """
        return self.draw_with(prompt, self.options(**chosen), advance)

    def draw_with(
        self,
        prompt: str,
        options: VideoOptions,
        advance: Callable[[], object] = lambda: None,
        *,
        initial: InitialImage | None = None,
    ) -> GeneratedVideo:
        """Return a video of a text.

        Args:
            prompt: The text.
            options: Options of the video.
            advance: Callback after every step.
            initial: First image of the video, for models that read one.
        """
        samples = []
        for sample in self.denoise(self.conditions(prompt, options), options, initial):
            samples = [sample]
            advance()
        frames = [bytes_of(values) for values in self.decode(samples[0], options)]
        pixels = np.concatenate(frames).transpose(0, 2, 3, 1)
        return GeneratedVideo(pixels=pixels, frame_rate=self.family.frame_rate, options=options)

    def image_conditions(self, initial: InitialImage | None) -> Mapping[str, Array]:
        """Return the conditions of an image; none for models that read texts alone."""
        return {}

    def channels(self, initial: InitialImage | None, options: VideoOptions) -> Array | None:
        """Return the channels that the transformers read after those of noise; None for none."""
        return None

    def calls(self, options: VideoOptions) -> int:
        """Return the number of steps of a video.

        Args:
            options: Options of the video.
        """
        return len(self._scheduler(options).timesteps)

    def denoise(
        self,
        conditions: Sequence[Conditions],
        options: VideoOptions,
        initial: InitialImage | None = None,
    ) -> Iterator[Array]:
        """Yield the sample after every step.

        Args:
            conditions: See `conditions`.
            options: Options of the video.
            initial: First image of the video, for models that read one.
        """
        draw, scheduler = NoiseGenerator(options.seed), self._scheduler(options)
        of_image = self.image_conditions(initial)
        noise = self.family.begin(draw(self.family.noise_shape(options)), options)
        return self._steps(
            scheduler,
            noise * np.float32(scheduler.initial_sigma),
            [{**one, **of_image} for one in conditions],
            options,
            draw,
            channels=self.channels(initial, options),
        )

    def decode(self, sample: Array, options: VideoOptions) -> Iterator[Array]:
        """Yield the frames of each frame of latents, float32 (frames, 3, height, width) from 0 to 1.

        Args:
            sample: Sample after the last step.
            options: Options of the video.

        Raises:
            GenerationError: Values are not finite.
        """
        latents = self.family.latents_of(sample, options)
        features: dict[str, Array] = {}
        for number in range(latents.shape[2]):
            program = self.programs["vae_decoder_next" if number else "vae_decoder"]
            found = program.run({"latent_sample": latents[:, :, number : number + 1], **features})
            features = carried_over(found)
            yield finite(found["sample"][0].transpose(1, 0, 2, 3))

    def values_of(self, sample: Array, options: VideoOptions) -> Array:
        """Return the frames of the last sample, float32 (frames, 3, height, width) from 0 to 1; see `decode`."""
        return np.concatenate([*self.decode(sample, options)])


def carried_over(found: Mapping[str, Array]) -> dict[str, Array]:
    """Return the features among the outputs of a call of the VAE as inputs of the next call."""
    return {
        name.replace("present", "past"): value
        for name, value in found.items()
        if name.startswith("present")
    }
