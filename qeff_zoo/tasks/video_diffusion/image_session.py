# SPDX-License-Identifier: Apache-2.0
"""Session of an image-to-video package: texts and images in, videos out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.media.images import ImageSource
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.options import VideoOptions
from qeff_zoo.tasks.video_diffusion.image_to_video import NAME
from qeff_zoo.tasks.video_diffusion.session import TextToVideoSession, carried_over
from qeff_zoo.tasks.video_diffusion.video import GeneratedVideo


class ImageToVideoSession(TextToVideoSession):
    """An opened package of the task `image-to-video`.

    Args:
        folder: The package.
        program: Opened decoder of the VAE for the first frame.
        **programs: All other opened programs, by role.

    Raises:
        GenerationError: The package is of another task.
        PackageError: The package lacks files of its pipeline.

    Example:
        >>> session = qeff_zoo.load("packages/Wan2.2-I2V-A14B-Diffusers")  # doctest: +SKIP
        >>> video = session.draw("a cat runs", image="cat.png", seed=0)  # doctest: +SKIP
        >>> video.write("cat.mp4")  # doctest: +SKIP
    """

    task = NAME

    def __init__(
        self, folder: Path, program: Program, **programs: Program | Callable[[], Program]
    ) -> None:
        super().__init__(folder, program, **programs)
        self._processor = (
            load_image_processor(folder / "image_processor")
            if "image_encoder" in self.programs
            else None
        )

    def draw(
        self,
        prompt: str,
        advance: Callable[[], object] = lambda: None,
        *,
        image: ImageSource | None = None,
        **chosen: Any,
    ) -> GeneratedVideo:
        """Return a video that begins with an image.

        Args:
            prompt: The text.
            advance: Callback after every step.
            image: The image: a path, the bytes of a file, a Pillow image or an array.
            **chosen: Fields of `VideoOptions`; the defaults are the pipeline's, and the seed is random.

        Raises:
            GenerationError: There is no image, or an option is out of its range.
            MediaError: The image cannot be read, or exceeds a limit.
        """
        options, initial = self.options(**chosen), self.read(image)
        return self.draw_with(prompt, options, advance, initial=initial)

    def read(self, image: ImageSource | None) -> InitialImage:
        """Return the first image of a video.

        Args:
            image: See `draw`.

        Raises:
            GenerationError: There is none.
            MediaError: The image cannot be read, or exceeds a limit.
        """
        if image is None:
            raise GenerationError(
                "The model draws videos that begin with an image, and there is none; expected one. Give an image, or "
                "use a checkpoint of text to video."
            )
        return InitialImage.read(image)

    def image_conditions(self, initial: InitialImage | None) -> Mapping[str, Array]:
        """Return the states of an image, if the transformers read them."""
        if self._processor is None or initial is None:
            return {}
        pixels = self._processor([initial.pixels])["pixel_values"]
        found = self.programs["image_encoder"].run({"pixel_values": pixels})
        return {"encoder_hidden_states_image": found["penultimate_state"]}

    def channels(self, initial: InitialImage | None, options: VideoOptions) -> Array | None:
        """Return the channels that the transformers read after those of noise.

        Args:
            initial: First image of the video.
            options: Options of the video.
        """
        assert initial is not None
        pixels = initial.prepared(options.height, options.width).pixel_values[:, :, None]
        later = np.zeros_like(pixels).repeat(self.family.frame_factor, axis=2)
        latents = (options.frames - 1) // self.family.frame_factor
        means, features = [], dict[str, Array]()
        for number in range(latents + 1):
            program = self.programs["vae_encoder_next" if number else "vae_encoder"]
            found = program.run({"pixel_values": later if number else pixels, **features})
            features = carried_over(found)
            means.append(found["mean"])
        return self.family.channels_of(np.concatenate(means, axis=2), options)
