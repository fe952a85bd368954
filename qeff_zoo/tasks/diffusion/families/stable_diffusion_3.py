# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 3 and 3.5: a transformer of latents and of the states of two CLIP encoders and T5.

IN   hidden_states (batch_size, channels, latent_height, latent_width) f32
     timestep (batch_size) f32                              from 0 to 1000
     encoder_hidden_states (batch_size, seq_len, width) f32   states of CLIP, filled up with zeros, then those of T5
     pooled_projections (batch_size, projection) f32          vectors of both CLIP encoders
OUT  output (batch_size, channels, latent_height, latent_width)   velocity
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, FlowFamily, Run, run_guided
from qeff_zoo.tasks.diffusion.options import ImageOptions

_CLIP = ("text_encoder", "text_encoder_2")


class StableDiffusion3(FlowFamily[ImageOptions]):
    """See `Family`."""

    guidance_scale = 7.0
    of_images: ClassVar[Mapping[str, Any]] = {"strength": 0.6, "steps": 50}
    of_masks = of_images
    lengths: ClassVar[Mapping[str, int]] = {"text_encoder_3": 256}

    @property
    def unit(self) -> int:
        """Number of pixels of which height and width are multiples: those of a patch."""
        return int(self.components["transformer"]["patch_size"]) * self.vae_factor

    @property
    def size(self) -> tuple[int, int]:
        """Default height and width, those of the training."""
        side = int(self.components["transformer"]["sample_size"]) * self.vae_factor
        return side, side

    def sizes(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a step; the states of both CLIP encoders lie side by side, before those of T5."""
        return super().sizes(tokens) | {"seq_len": tokens[_CLIP[0]] + tokens["text_encoder_3"]}

    def problems(self) -> list[str]:
        """Return inputs of the transformer that the pipeline does not compute."""
        channels = self.components["transformer"].get("in_channels")
        latents = self.components["vae"].get("latent_channels")
        if channels == latents:
            return []
        return [
            f"has a transformer that reads {channels} channels; expected {latents}: those of latents. Use another "
            "checkpoint."
        ]

    def check(self, options: ImageOptions) -> None:
        """Refuse images with more patches on a side than the transformer has places for.

        Raises:
            GenerationError: There are more, or another option is out of its range.
        """
        super().check(options)
        longest = int(self.components["transformer"]["pos_embed_max_size"]) * self.unit
        for name in ("height", "width"):
            if (side := getattr(options, name)) > longest:
                raise GenerationError(
                    f"The {name} of an image is {side}; expected at most {longest} pixels, for which the model's "
                    "transformer has places. Choose a smaller one."
                )

    @property
    def lost_with_masks(self) -> str:
        """The shift of latents, which images with masks are decoded without."""
        return "'shift_factor'" if self.components["vae"]["shift_factor"] else ""

    def noise_shape(self, options: ImageOptions) -> tuple[int, ...]:
        """Return the shape of the latents."""
        height, width = (side // self.vae_factor for side in (options.height, options.width))
        return 1, int(self.components["transformer"]["in_channels"]), height, width

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the states of all encoders one after the other, and the vectors of CLIP side by side."""
        clip = [encoders[role](text) for role in _CLIP]
        states = np.concatenate([one["penultimate_state"] for one in clip], axis=-1)
        t5 = encoders["text_encoder_3"](text)["last_hidden_state"]
        states = np.pad(states, ((0, 0), (0, 0), (0, t5.shape[-1] - states.shape[-1])))
        return {
            "encoder_hidden_states": np.concatenate([states, t5], axis=1),
            "pooled_projections": np.concatenate([one["text_embeds"] for one in clip], axis=-1),
        }

    def schedule(self, options: ImageOptions) -> dict[str, Any]:
        """Return the number of patches, which may shift the noise levels."""
        return {"length": (options.height // self.unit) * (options.width // self.unit)}

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: ImageOptions,
    ) -> Array:
        """Return the guided velocity, of one call for both prompts."""
        return run_guided(
            run, ("hidden_states", sample), timestep, conditions, options.guidance_scale
        )


FAMILY = StableDiffusion3
