# SPDX-License-Identifier: Apache-2.0
"""Session of a text-to-image package: texts in, and initial images with their masks; images out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import ImageSource
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions
from qeff_zoo.tasks.diffusion.initial_image import InitialImage, PreparedImage
from qeff_zoo.tasks.diffusion.noise import NoiseGenerator
from qeff_zoo.tasks.diffusion.options import LONGEST, GeneratedImage, ImageOptions
from qeff_zoo.tasks.diffusion.pipeline_session import PipelineSession, bytes_of, finite
from qeff_zoo.tasks.diffusion.schedulers import Scheduler
from qeff_zoo.tasks.diffusion.text_to_image import NAME


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedImage:
    """Initial image as the encoder of the VAE returns it.

    Args:
        mean: Mean of its latents, (1, channels, latent_height, latent_width).
        deviation: Standard deviation of its latents.
        masked: Mean and deviation of the latents of the image without its masked part; None for models that read none.
        mask: Mask of its latents, (1, 1, latent_height, latent_width): 1 where the image is drawn anew; None without a
            mask.
    """

    mean: Array
    deviation: Array
    masked: tuple[Array, Array] | None = None
    mask: Array | None = None


class TextToImageSession(PipelineSession[ImageOptions]):
    """An opened package of the task `text-to-image`.

    Args:
        folder: The package.
        program: Opened decoder of the VAE.
        **programs: Opened text encoders, the model that removes noise, and the encoder of the VAE, by role.

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
    options_type = ImageOptions
    results = "Images"

    def options(
        self, image_size: tuple[int, int] | None = None, *, has_mask: bool = False, **chosen: Any
    ) -> ImageOptions:
        """Return the options of an image; those that are left out or None are the pipeline's.

        Args:
            image_size: Height and width of the initial image; None without one. They are the default size, rounded
                down to multiples of the model's.
            has_mask: Whether the initial image has a mask.
            **chosen: Fields of `ImageOptions`.

        Raises:
            GenerationError: A value is out of its range, or the package reads no images.
        """
        usual: dict[str, Any] = {}
        if image_size:
            self.require_encoder()
            unit = self.family.unit
            _require_drawable(image_size, chosen)
            height, width = (max(side - side % unit, unit) for side in image_size)
            usual = {"height": height, "width": width}
            usual |= self.family.of_masks if has_mask else self.family.of_images
        options = self._options(usual, chosen)
        self.family.check_inputs(has_mask=has_mask)
        if image_size:
            self.family.check_initial_image(options, has_mask=has_mask)
        else:
            options.refuse_initial_image()
        return options

    def require_encoder(self) -> None:
        """Refuse images of a package without the encoder of the VAE, such as one of an earlier version.

        Raises:
            GenerationError: The package has none.
        """
        if "vae_encoder" not in self.programs:
            raise GenerationError(
                f"{str(self.folder)!r} has no encoder of images; expected the program 'vae_encoder'. Build the package "
                "again, or leave the image out."
            )

    def draw(
        self,
        prompt: str,
        *,
        image: ImageSource | None = None,
        mask: ImageSource | None = None,
        **chosen: Any,
    ) -> GeneratedImage:
        """Return an image of a text.

        Args:
            prompt: The text.
            image: Initial image, which is changed: a path, the bytes of a file, a Pillow image or an array.
            mask: Mask of the image, of its size: white where the image is drawn anew.
            **chosen: Fields of `ImageOptions`; the defaults are the pipeline's, and the seed is random.

        Raises:
            GenerationError: An option is out of its range, or a mask has another size.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        initial = self.read(image, mask)
        options = self.options_for(initial, **chosen)
        return self.draw_all([prompt], options, initial=initial)[0]

    def read(
        self, image: ImageSource | None, mask: ImageSource | None = None
    ) -> InitialImage | None:
        """Return an initial image with its mask; None without one.

        Args:
            image: See `draw`.
            mask: See `draw`.

        Raises:
            GenerationError: There is a mask without an image, or of another size, or the package reads no images.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        if image is None:
            if mask is not None:
                raise GenerationError(
                    "A mask is given without an image; expected the image whose part is drawn anew. Add the image."
                )
            return None
        self.require_encoder()
        return InitialImage.read(image, mask)

    def options_for(self, initial: InitialImage | None, **chosen: Any) -> ImageOptions:
        """Return the options of an image that begins with another one, if there is one; see `options`."""
        if initial is None:
            return self.options(**chosen)
        height, width = initial.pixels.shape[:2]
        return self.options((height, width), has_mask=initial.mask is not None, **chosen)

    def draw_all(
        self,
        prompts: Sequence[str],
        options: ImageOptions,
        advance: Callable[[], object] = lambda: None,
        *,
        initial: InitialImage | None = None,
    ) -> list[GeneratedImage]:
        """Return an image of each text, one after the other, all with the same options.

        Args:
            prompts: The texts.
            options: Options of every image.
            advance: Callback after every step.
            initial: Image that every image begins with.
        """
        read = [self.conditions(prompt, options) for prompt in prompts]
        encoded = None
        if initial:
            blur = options.mask_blur or 0
            encoded = self.encode(initial.prepared(options.height, options.width, blur))
        return [self._draw(conditions, options, advance, encoded) for conditions in read]

    def _draw(
        self,
        conditions: Sequence[Conditions],
        options: ImageOptions,
        advance: Callable[[], object],
        encoded: EncodedImage | None,
    ) -> GeneratedImage:
        samples = []
        for sample in self.denoise(conditions, options, encoded):
            samples = [sample]
            advance()
        return GeneratedImage(pixels=self.decode(samples[0], options), options=options)

    def encode(self, prepared: PreparedImage) -> EncodedImage:
        """Return an initial image as the encoder of the VAE returns it.

        Args:
            prepared: The image, and its mask, in the size that is drawn.
        """
        mean, deviation = self._moments(prepared.pixel_values)
        if prepared.mask is None:
            return EncodedImage(mean=mean, deviation=deviation)
        every, masked = self.family.vae_factor, None
        if self.family.reads_masks:
            masked = self._moments(prepared.pixel_values * (1 - prepared.mask))
        mask = prepared.mask[:, :, ::every, ::every]
        return EncodedImage(mean=mean, deviation=deviation, masked=masked, mask=mask)

    def _moments(self, pixels: Array) -> tuple[Array, Array]:
        """Return mean and deviation of the latents of pixels."""
        found = self.programs["vae_encoder"].run({"pixel_values": pixels})
        return found["mean"], found["deviation"]

    def calls(self, options: ImageOptions) -> int:
        """Return the number of calls of the model for an image.

        Args:
            options: Options of the image.
        """
        scheduler = self._scheduler(options)
        return len(scheduler.timesteps) - self._first_call(scheduler, options)

    def _first_call(self, scheduler: Scheduler, options: ImageOptions) -> int:
        if options.strength is None:
            return 0
        return scheduler.call_of(self.family.skipped_steps(options))

    def denoise(
        self,
        conditions: Sequence[Conditions],
        options: ImageOptions,
        encoded: EncodedImage | None = None,
    ) -> Iterator[Array]:
        """Yield the sample after every call of the model.

        Args:
            conditions: See `conditions`.
            options: Options of the image.
            encoded: Initial image, see `encode`.
        """
        draw = NoiseGenerator(options.seed)
        scheduler, shape = self._scheduler(options), self.family.noise_shape(options)
        first = self._first_call(scheduler, options)
        known = mask = channels = None
        from_noise = encoded is None or (encoded.mask is not None and options.strength == 1)
        # As in diffusers, which draws latents of an image only if it reads them.
        if encoded and not (from_noise and self.family.reads_masks):
            deviation = encoded.deviation * draw(shape)
            known = self.family.sample_of(encoded.mean + deviation, options)
        noise = self.family.begin(draw(shape), options)
        if known is None or from_noise:
            sample: Array = noise * np.float32(scheduler.initial_sigma)
        else:
            sample = scheduler.noisy(known, noise, first)
        if encoded and encoded.mask is not None:
            of_masked = draw(shape)  # by diffusers for models that read none, too
            if encoded.masked:
                latents = encoded.masked[0] + encoded.masked[1] * of_masked
                latents = self.family.sample_of(latents, options)
                channels = np.concatenate([encoded.mask, latents], axis=1)
            else:
                mask = self.family.begin(np.broadcast_to(encoded.mask, shape), options)
        last = len(scheduler.timesteps) - 1

        def keep(call: int, drawn: Array) -> Array:
            if known is None or mask is None:
                return drawn
            kept = known if call == last else scheduler.noisy(known, noise, call + 1)
            whole: Array = (1 - mask) * kept + mask * drawn
            return whole

        yield from self._steps(
            scheduler,
            sample,
            conditions,
            options,
            draw,
            first=first,
            channels=channels,
            keep=keep,
        )

    def values_of(self, sample: Array, options: ImageOptions) -> Array:
        """Return the image of the last sample, float32 (3, height, width) from 0 to 1.

        Args:
            sample: See `denoise`.
            options: Options of the image.

        Raises:
            GenerationError: Values are not finite.
        """
        latents = self.family.latents_of(sample, options)
        return finite(self.programs["vae_decoder"].run({"latent_sample": latents})["sample"][0])

    def decode(self, sample: Array, options: ImageOptions) -> Array:
        """Return the pixels of the last sample, uint8 (height, width, 3); see `values_of`."""
        return bytes_of(self.values_of(sample, options).transpose(1, 2, 0))


def _require_drawable(size: tuple[int, int], chosen: Mapping[str, Any]) -> None:
    """Refuse to draw in the size of an image that is larger than images are drawn."""
    sides = dict(zip(("height", "width"), size, strict=True))
    for name, side in sides.items():
        if chosen.get(name) is None and side > LONGEST:
            raise GenerationError(
                f"The initial image has a {name} of {side:,} pixels, and is drawn in its own size; expected at most "
                f"{LONGEST:,}. Set height and width, to which it is resized."
            )
