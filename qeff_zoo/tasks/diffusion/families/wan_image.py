# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2 from an image: the transformers also read a mask of the first frame, and its latents.

IN   hidden_states   as in `wan`, with the channels of the mask and of the latents of the image after those of noise
     timestep, encoder_hidden_states   as in `wan`
     [encoder_hidden_states_image (batch_size, image_len, width) f32   states of the image, for version 2.1]
OUT  output   as in `wan`
"""

from collections.abc import Mapping

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.families.wan import SECOND, Wan
from qeff_zoo.tasks.diffusion.options import VideoOptions


class WanImage(Wan):
    """See `Family`."""

    @property
    def channels(self) -> int:
        """Number of channels that a transformer reads: those of latents twice, and those of the mask."""
        return 2 * super().channels + self.frame_factor

    def problems(self) -> list[str]:
        """Return inputs of the transformers, or settings, that the pipeline does not compute."""
        found = super().problems()
        if self.config.get("expand_timesteps"):
            found.append(
                "has a transformer that reads a time for each patch (expand_timesteps); expected one that reads a time "
                "for each step. Use another checkpoint."
            )
        return found

    def image_problems(self, role: str) -> list[str]:
        """Return why the states of an image that a transformer reads are not those of the checkpoint."""
        if self.components[role].get("pos_embed_seq_len"):
            return [
                f"has a {role} that reads the states of a last image too (pos_embed_seq_len); expected those of the "
                "first alone. Use another checkpoint."
            ]
        reads = bool(self.components[role].get("image_dim"))
        has = "image_encoder" in self.components
        if reads == has or role == SECOND:
            return []
        return [
            f"has {'a' if has else 'no'} image_encoder, and a {role} that reads {'' if reads else 'no '}states of an "
            "image; expected both or neither. Use another checkpoint."
        ]

    def sizes(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a step for one prompt, with the states of the image."""
        found = super().sizes(tokens)
        if encoder := self.components.get("image_encoder"):
            del found["seq_len"]
            found["image_len"] = 1 + (encoder["image_size"] // encoder["patch_size"]) ** 2
        return found

    def encoder_sizes(self) -> dict[str, int]:
        """Return the sizes of the features of convolutions, which are those of the decoder and of latents."""
        sides = zip(("latent_height", "latent_width"), self.size, strict=True)
        return {**self.decoder_sizes(), **{name: side // self.vae_factor for name, side in sides}}

    def channels_of(self, mean: Array, options: VideoOptions) -> Array:
        """Return the channels of a mask of the first frame, and of the latents of an image."""
        latents = self.sample_of(mean, options)
        mask = np.zeros((1, self.frame_factor, *latents.shape[2:]), np.float32)
        mask[:, :, 0] = 1
        return np.concatenate([mask, latents], axis=1)


FAMILY = WanImage
