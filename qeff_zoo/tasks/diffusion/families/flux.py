# SPDX-License-Identifier: Apache-2.0
"""Flux 1: a transformer of patches of latents and tokens of T5, with a vector of CLIP.

IN   hidden_states (batch_size, image_len, 4 * channels) f32    patches of 2 x 2 latents
     timestep (batch_size) f32                                 from 0 to 1
     pooled_projections (batch_size, projection) f32           vector of the text
     encoder_hidden_states (batch_size, seq_len, width) f32    states of the text
     img_ids (image_len, 3), txt_ids (seq_len, 3) f32          places of patches, and zeros
     [guidance (batch_size) f32                                scale of guidance, for models distilled with it]
OUT  output (batch_size, image_len, 4 * channels)              velocity
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, FlowFamily, Run
from qeff_zoo.tasks.diffusion.options import ImageOptions

_PATCH = 2  # latents on a side of a patch
_SIDE = 128  # latents on a side of the default image
_TIMESTEPS = np.float32(1000)


class Flux(FlowFamily[ImageOptions]):
    """See `Family`."""

    guidance_scale = 3.5
    of_images: ClassVar[Mapping[str, Any]] = {"strength": 0.6, "guidance_scale": 7.0}
    of_masks = of_images
    lengths: ClassVar[Mapping[str, int]] = {"text_encoder_2": 512}
    guided: ClassVar[Mapping[str, Any]] = {"true_cfg_scale": 3.0}

    @property
    def unit(self) -> int:
        """Number of pixels of which height and width are multiples: those of a patch."""
        return _PATCH * self.vae_factor

    @property
    def size(self) -> tuple[int, int]:
        """Default height and width."""
        return _SIDE * self.vae_factor, _SIDE * self.vae_factor

    def sizes(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a step for one prompt, with the number of patches."""
        patches = math.prod(side // self.unit for side in self.size)
        return {"batch_size": 1, "seq_len": tokens["text_encoder_2"], "image_len": patches}

    def check(self, options: ImageOptions) -> None:
        """Refuse a negative prompt without guidance away from it.

        Raises:
            GenerationError: There is one, or another option is out of its range.
        """
        options.check(self.unit)
        if options.negative_prompt is not None and not options.true_cfg_scale > 1:
            raise GenerationError(
                f"negative_prompt is given with true_cfg_scale {options.true_cfg_scale!r}, where it has no effect; "
                "expected more than 1. Set true_cfg_scale, or leave the negative prompt out."
            )

    def is_guided(self, options: ImageOptions) -> bool:
        """Whether a step also predicts the velocity for the negative prompt."""
        return options.negative_prompt is not None and options.true_cfg_scale > 1

    def noise_shape(self, options: ImageOptions) -> tuple[int, ...]:
        """Return the shape of the latents."""
        rows, columns = self._patches(options)
        channels = int(self.components["transformer"]["in_channels"]) // _PATCH**2
        return 1, channels, _PATCH * rows, _PATCH * columns

    def _patches(self, options: ImageOptions) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches."""
        return options.height // self.unit, options.width // self.unit

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the vector of CLIP, and the states of T5."""
        return {
            "pooled_projections": encoders["text_encoder"](text)["pooler_output"],
            "encoder_hidden_states": encoders["text_encoder_2"](text)["last_hidden_state"],
        }

    def schedule(self, options: ImageOptions) -> dict[str, Any]:
        """Return the noise levels of the steps, and the number of patches, which may shift them."""
        rows, columns = self._patches(options)
        given: dict[str, Any] = {"length": rows * columns}
        if not self.scheduler.get("use_flow_sigmas"):
            given["sigmas"] = np.linspace(1.0, 1 / options.steps, options.steps).tolist()
        return given

    def begin(self, noise: Array, options: ImageOptions) -> Array:
        """Return patches of noise, (1, patches, 4 * channels)."""
        rows, columns = self._patches(options)
        patches = noise.reshape(1, -1, rows, _PATCH, columns, _PATCH).transpose(0, 2, 4, 1, 3, 5)
        return np.ascontiguousarray(patches.reshape(1, rows * columns, -1))

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: ImageOptions,
    ) -> Array:
        """Return the velocity; with guidance away from a negative prompt, of a call for each prompt."""
        rows, columns = self._patches(options)
        places = np.zeros((rows, columns, 3), np.float32)
        places[..., 1], places[..., 2] = np.arange(rows)[:, None], np.arange(columns)[None]
        feeds = {
            "hidden_states": sample,
            "timestep": np.array([timestep], np.float32) / _TIMESTEPS,
            "img_ids": places.reshape(-1, 3),
        }
        if self.components["transformer"].get("guidance_embeds"):
            feeds["guidance"] = np.array([options.guidance_scale], np.float32)
        outputs = []
        for one in conditions:
            length = one["encoder_hidden_states"].shape[1]
            text = {**one, "txt_ids": np.zeros((length, 3), np.float32)}
            outputs.append(run({**feeds, **text})["output"])
        if len(outputs) == 1:
            return outputs[0]
        away, toward = outputs
        found: Array = away + np.float32(options.true_cfg_scale) * (toward - away)
        return found

    def latents_of(self, sample: Array, options: ImageOptions) -> Array:
        """Return the input of the VAE's decoder from the last patches."""
        rows, columns = self._patches(options)
        patches = sample.reshape(1, rows, columns, -1, _PATCH, _PATCH).transpose(0, 3, 1, 4, 2, 5)
        latents = patches.reshape(1, -1, _PATCH * rows, _PATCH * columns)
        return super().latents_of(latents, options)


FAMILY = Flux
