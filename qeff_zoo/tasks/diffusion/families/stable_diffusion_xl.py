# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion XL: a UNet that reads the states of two text encoders, a vector of the text, and sizes.

IN   as in `stable_diffusion`, and
     text_embeds (batch_size, projection) f32   vector of the text
     time_ids (batch_size, 6) f32               original size, corner of the crop, and target size, in pixels
OUT  output (batch_size, channels, latent_height, latent_width)
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.families.stable_diffusion import StableDiffusion
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, Run
from qeff_zoo.tasks.diffusion.options import ImageOptions

_STATES = "encoder_hidden_states"


class StableDiffusionXL(StableDiffusion):
    """See `Family`."""

    guidance_scale = 5.0
    of_images: ClassVar[Mapping[str, Any]] = {"strength": 0.3}
    of_masks: ClassVar[Mapping[str, Any]] = {"strength": 0.9999, "guidance_scale": 7.5}
    added = "text_time"

    @property
    def scheduler(self) -> Mapping[str, Any]:
        """Configuration of the scheduler, unchanged."""
        return super(StableDiffusion, self).scheduler

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the states before the last layers of both text encoders, and the vector of the second."""
        first, second = (encoders[role](text) for role in ("text_encoder", "text_encoder_2"))
        both = [one["penultimate_state"] for one in (first, second)]
        return {_STATES: np.concatenate(both, axis=-1), "text_embeds": second["text_embeds"]}

    def encode_negative(
        self, encoders: Mapping[str, Encodes], options: ImageOptions, positive: Conditions
    ) -> Conditions:
        """Return the conditions of the negative prompt; zeros without one, if the pipeline sets so."""
        if options.negative_prompt is None and self.config.get(
            "force_zeros_for_empty_prompt", True
        ):
            return {name: np.zeros_like(value) for name, value in positive.items()}
        return super().encode_negative(encoders, options, positive)

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: ImageOptions,
    ) -> Array:
        """Return the guided output; the image is neither scaled nor cropped."""
        size = options.height, options.width
        sizes = np.array([[*size, 0, 0, *size]], np.float32)
        sized = [{**one, "time_ids": sizes} for one in conditions]
        return super().predict(run, sample, timestep, sized, options)

    @property
    def lost_with_masks(self) -> str:
        """Mean and deviation of each channel, if the VAE has them."""
        return "'latents_mean' and 'latents_std'" if self._moments() else ""

    def _moments(self) -> list[Array] | None:
        """Return mean and deviation of each channel; None without them."""
        config = self.components["vae"]
        moments = [config.get(name) for name in ("latents_mean", "latents_std")]
        if None in moments:
            return None
        return [np.array(one, np.float32)[None, :, None, None] for one in moments]

    def sample_of(self, latents: Array, options: ImageOptions) -> Array:
        """Return a sample without noise from the latents of an image."""
        moments = self._moments()
        if moments is None:
            return super().sample_of(latents, options)
        mean, deviation = moments
        sample: Array = (
            (latents - mean) * np.float32(self.components["vae"]["scaling_factor"]) / deviation
        )
        return sample

    def latents_of(self, sample: Array, options: ImageOptions) -> Array:
        """Return the input of the VAE's decoder; some VAEs have a mean and a deviation for each channel."""
        moments = self._moments()
        if moments is None:
            return super().latents_of(sample, options)
        mean, deviation = moments
        scale = np.float32(self.components["vae"]["scaling_factor"])
        scaled: Array = sample * deviation / scale + mean
        return scaled


FAMILY = StableDiffusionXL
