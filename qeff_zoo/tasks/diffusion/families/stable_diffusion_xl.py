# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion XL: a UNet that reads the states of two text encoders, a vector of the text, and sizes.

IN   as in `stable_diffusion`, and
     text_embeds (batch_size, projection) f32   vector of the text
     time_ids (batch_size, 6) f32               original size, corner of the crop, and target size, in pixels
OUT  output (batch_size, channels, latent_height, latent_width)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.families.stable_diffusion import StableDiffusion
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, Run
from qeff_zoo.tasks.diffusion.options import ImageOptions

_STATES = "encoder_hidden_states"


class StableDiffusionXL(StableDiffusion):
    """See `Family`."""

    guidance_scale = 5.0
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

    def latents_of(self, sample: Array, options: ImageOptions) -> Array:
        """Return the input of the VAE's decoder; some VAEs have a mean and a deviation for each channel."""
        config = self.components["vae"]
        moments = [config.get(name) for name in ("latents_mean", "latents_std")]
        if None in moments:
            return super().latents_of(sample, options)
        mean, deviation = (np.array(one, np.float32)[None, :, None, None] for one in moments)
        scaled: Array = sample * deviation / np.float32(config["scaling_factor"]) + mean
        return scaled


FAMILY = StableDiffusionXL
