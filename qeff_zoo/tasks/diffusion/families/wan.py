# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2: a transformer of latents of a video, or two: one for steps with much noise, and one for the others.

IN   hidden_states (batch_size, channels, latent_frames, latent_height, latent_width) f32
     timestep (batch_size) f32                              from 0 to 1000
     encoder_hidden_states (batch_size, seq_len, width) f32   states of the text, filled up with zeros
OUT  output (batch_size, channels, latent_frames, latent_height, latent_width)   velocity
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.diffusion.family import Conditions, Encodes, Run, VideoFamily
from qeff_zoo.tasks.diffusion.options import VideoOptions

_TOKENS = 512  # of a prompt
_LEAST_UNIT = 16  # which diffusers requires of every model
#: Role of the transformer of steps with little noise.
SECOND = "transformer_2"


class Wan(VideoFamily):
    """See `Family`."""

    steps = 50
    guidance_scale = 5.0
    pads_prompts = False
    lengths: ClassVar[Mapping[str, int]] = {"text_encoder": _TOKENS}
    frames = 81

    @property
    def vae_factor(self) -> int:
        """Pixels on a side for each latent."""
        return int(self.components["vae"]["scale_factor_spatial"])

    @property
    def frame_factor(self) -> int:
        """Frames for each latent but the first, which has one."""
        return int(self.components["vae"]["scale_factor_temporal"])

    @property
    def frame_rate(self) -> int:
        """Frames per second of the training."""
        return 24 if self.config.get("expand_timesteps") else 16

    @property
    def most_frames(self) -> int:
        """Largest number of frames, for which the transformer has places."""
        places = int(self.components[self.denoiser]["rope_max_seq_len"])
        return 1 + (places - 1) * self.frame_factor

    @property
    def unit(self) -> int:
        """Number of pixels of which height and width are multiples: those of a patch."""
        _, *sides = self.components[self.denoiser]["patch_size"]
        return math.lcm(_LEAST_UNIT, *(side * self.vae_factor for side in sides))

    @property
    def size(self) -> tuple[int, int]:
        """Default height and width."""
        return 480, 832

    def sizes(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a step for one prompt, with the frames of the latents."""
        frames = self._latent_frames(self.frames)
        return {**super().sizes(tokens), "batch_size": 1, "latent_frames": frames}

    def decoder_sizes(self) -> dict[str, int]:
        """Return the sizes of the features of convolutions, which each level of the decoder doubles."""
        sides = zip(("latent_height", "latent_width"), self.size, strict=True)
        scales = [2**level for level in range(1, len(self.components["vae"]["dim_mult"]))]
        return {
            f"{name}_x{scale}": side // self.vae_factor * scale
            for name, side in sides
            for scale in scales
        }

    def _latent_frames(self, frames: int) -> int:
        return (frames - 1) // self.frame_factor + 1

    def problems(self) -> list[str]:
        """Return inputs of the transformers, or settings, that the pipeline does not compute."""
        vae, found = self.components["vae"], list[str]()
        for role in (self.denoiser, SECOND):
            config = self.components.get(role)
            if config is None:
                continue
            if config.get("in_channels") != self.channels:
                found.append(
                    f"has a {role} that reads {config.get('in_channels')} channels; expected {self.channels}, which "
                    "the pipeline computes. Use another checkpoint."
                )
            found += self.image_problems(role)
            if config.get("patch_size", [1])[0] != 1:
                found.append(
                    f"has a {role} with patches of {config['patch_size'][0]} frames; expected 1. Use another "
                    "checkpoint."
                )
        if (self.config.get("boundary_ratio") is None) != (SECOND not in self.components):
            found.append(
                f"has the boundary_ratio {self.config.get('boundary_ratio')!r}, and "
                f"{'a' if SECOND in self.components else 'no'} {SECOND}; expected both or neither. Correct "
                "model_index.json."
            )
        computed = {
            "scale_factor_spatial": 2 ** (len(vae["dim_mult"]) - 1) * (vae.get("patch_size") or 1),
            "scale_factor_temporal": 2 ** sum(vae["temperal_downsample"]),
        }
        found += [
            f"has a VAE with the {name} {vae.get(name)!r}, whose levels make {value}; expected equal numbers. Correct "
            "vae/config.json."
            for name, value in computed.items()
            if vae.get(name) != value
        ]
        return found

    @property
    def channels(self) -> int:
        """Number of channels that a transformer reads: those of latents."""
        return int(self.components["vae"]["z_dim"])

    def image_problems(self, role: str) -> list[str]:
        """Return why the states of an image that a transformer reads are not computed."""
        config = self.components[role]
        if not (config.get("image_dim") or config.get("added_kv_proj_dim")):
            return []
        return [
            f"has a {role} that reads states of an image; expected one that reads texts alone. Use a checkpoint of "
            "text to video."
        ]

    def check(self, options: VideoOptions) -> None:
        """Refuse options that no video has.

        Raises:
            GenerationError: There is such an option.
        """
        super().check(options)
        options.check_frames(self.frame_factor, self.most_frames)
        options.check_second_scale(has_second=SECOND in self.components)

    def cleaned(self, text: str) -> str:
        """Return a prompt without HTML's references and repeated white space, as diffusers does without ftfy."""
        return " ".join(html.unescape(html.unescape(text)).split())

    def noise_shape(self, options: VideoOptions) -> tuple[int, ...]:
        """Return the shape of the latents."""
        height, width = (side // self.vae_factor for side in (options.height, options.width))
        channels = int(self.components["vae"]["z_dim"])
        return 1, channels, self._latent_frames(options.frames), height, width

    def encode(self, encoders: Mapping[str, Encodes], text: str) -> Conditions:
        """Return the states of the text, with zeros after its end."""
        states = encoders["text_encoder"](text)["last_hidden_state"]
        missing = _TOKENS - states.shape[1]
        return {"encoder_hidden_states": np.pad(states, ((0, 0), (0, missing), (0, 0)))}

    def _is_first(self, timestep: float) -> bool:
        """Whether a timestep is one of the first transformer."""
        boundary = self.config.get("boundary_ratio")
        training = int(self.scheduler.get("num_train_timesteps", 1000))
        return boundary is None or timestep >= boundary * training

    def denoiser_at(self, timestep: float) -> str:
        """Return the role of the transformer of a timestep."""
        return self.denoiser if self._is_first(timestep) else SECOND

    def predict(
        self,
        run: Run,
        sample: Array,
        timestep: float,
        conditions: Sequence[Conditions],
        options: VideoOptions,
    ) -> Array:
        """Return the guided velocity, of a call for each prompt: a call for both would take twice the memory."""
        feeds = {"hidden_states": sample, "timestep": np.array([timestep], np.float32)}
        outputs = [run({**feeds, **one})["output"] for one in conditions]
        if len(outputs) == 1:
            return outputs[0]
        scale = options.guidance_scale
        if options.guidance_scale_2 is not None and not self._is_first(timestep):
            scale = options.guidance_scale_2
        away, toward = outputs
        found: Array = away + np.float32(scale) * (toward - away)
        return found

    def _scale_and_shift(self) -> tuple[Any, Any]:
        """Return the scale of latents and their shift, by channel."""
        vae = self.components["vae"]
        mean, deviation = (
            np.array(vae[name], np.float32).reshape(1, -1, 1, 1, 1)
            for name in ("latents_mean", "latents_std")
        )
        return np.float32(1) / deviation, mean


FAMILY = Wan
