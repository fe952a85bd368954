# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 1 and 2: a UNet that reads the states of a CLIP text encoder.

IN   sample (batch_size, channels, latent_height, latent_width) f32
     timestep (batch_size) f32
     encoder_hidden_states (batch_size, seq_len, width) f32
OUT  output (batch_size, channels, latent_height, latent_width)   predicted noise, or velocity
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, Family, Run, run_guided
from qeff_zoo.tasks.diffusion.options import ImageOptions

_LEAST_UNIT = 8  # which diffusers requires of every model


class StableDiffusion(Family[ImageOptions]):
    """See `Family`."""

    denoiser = "unet"
    steps = 50
    guidance_scale = 7.5
    of_images: ClassVar[Mapping[str, Any]] = {"strength": 0.8}
    of_masks: ClassVar[Mapping[str, Any]] = {"strength": 1.0}
    #: Conditions of the UNet beside the states of the text: `addition_embed_type` of its configuration.
    added: ClassVar[str | None] = None

    @property
    def unit(self) -> int:
        """Number of pixels of which height and width are multiples: each level of the UNet halves the latents."""
        levels = len(self.components["unet"]["block_out_channels"])
        return int(max(_LEAST_UNIT, self.vae_factor * 2 ** (levels - 1)))

    @property
    def size(self) -> tuple[int, int]:
        """Default height and width, those of the training."""
        size = self.components["unet"]["sample_size"]
        height, width = (size, size) if isinstance(size, int) else size
        return int(height) * self.vae_factor, int(width) * self.vae_factor

    @property
    def scheduler(self) -> Mapping[str, Any]:
        """Configuration of the scheduler; diffusers' pipeline replaces two values of older files."""
        found = dict(super().scheduler)
        if found.get("steps_offset", 1) != 1:
            found["steps_offset"] = 1
        if found.get("clip_sample") is True:
            found["clip_sample"] = False
        return found

    def problems(self) -> list[str]:
        """Return inputs of the UNet that the pipeline does not compute."""
        config, found = self.components["unet"], list[str]()
        if config.get("time_cond_proj_dim") is not None:
            found.append(
                "has a UNet that reads the scale of guidance (time_cond_proj_dim), as in latent consistency models; "
                "expected one without. Use another checkpoint."
            )
        if (added := config.get("addition_embed_type")) != self.added:
            found.append(
                f"has a UNet with the addition_embed_type {added!r}; expected {self.added!r}. Use another checkpoint."
            )
        returned, latents = (
            config.get("out_channels"),
            self.components["vae"].get("latent_channels", 4),
        )
        expected = 2 * latents + 1 if self.reads_masks else latents
        if (channels := config.get("in_channels")) != expected or returned != latents:
            found.append(
                f"has a UNet that reads {channels} channels and returns {returned}; expected {expected} and {latents}: "
                f"those of latents{', twice, and of a mask' * self.reads_masks}. Use another checkpoint."
            )
        return found

    def noise_shape(self, options: ImageOptions) -> tuple[int, ...]:
        """Return the shape of the latents."""
        height, width = (side // self.vae_factor for side in (options.height, options.width))
        return 1, int(self.components["unet"]["out_channels"]), height, width

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the last states of the text encoder."""
        return {"encoder_hidden_states": encoders["text_encoder"](text)["last_hidden_state"]}

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: ImageOptions,
    ) -> Array:
        """Return the guided output, of one call for both prompts."""
        return run_guided(run, ("sample", sample), timestep, conditions, options.guidance_scale)


FAMILY = StableDiffusion
