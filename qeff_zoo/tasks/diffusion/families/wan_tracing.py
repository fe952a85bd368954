# SPDX-License-Identifier: Apache-2.0
"""Tracing of Wan's text encoder, transformers, and the decoder of its VAE.

The decoder takes one frame of latents at a time: the first becomes a frame, each other one several. Its causal
convolutions read features of the two frames before, which calls hand on to the next.

vae_decoder       IN   latent_sample (batch_size, channels, 1, latent_height, latent_width) f32
                  OUT  sample (batch_size, 3, 1, height, width), from -1 to 1
                       present_features_N (batch_size, channels, 2, rows, columns), of each convolution
vae_decoder_next  IN   latent_sample, and past_features_N: present_features_N of the call before
                  OUT  as vae_decoder, with several frames
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import CACHE_T, unpatchify
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.tracing import BATCH, batch, latent_sides, name_axes, trace_encoder

_TOKENS, _FRAMES = 5, 3  # of the example
#: Rows and columns of latents of the example.
ROWS, COLUMNS = 2, 3
#: Names of the axes of latents of a video.
FRAME_AXES = ("batch_size", None, "latent_frames", "latent_height", "latent_width")


def text_encoder(model: Any) -> Tracing:
    """Describe how to trace UMT5."""
    return trace_encoder(model.text_encoder, lambda output: (output.last_hidden_state,))


class PredictVelocity(nn.Module):
    """One call of a transformer.

    Args:
        transformer: Module of diffusers.
        role: Name of the module in the pipeline, with which names of its parameters begin.
    """

    def __init__(self, transformer: Any, role: str) -> None:
        super().__init__()
        self.add_module(role, transformer)
        self.role = role

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
    ) -> Tensor:
        """Return the output of the model."""
        found: Tensor = getattr(self, self.role)(
            hidden_states,
            timestep,
            encoder_hidden_states,
            encoder_hidden_states_image,
            return_dict=False,
        )[0]
        return found


def transformer(model: Any) -> Tracing:
    """Describe how to trace the transformer, or that of steps with much noise."""
    return trace_transformer(model.transformer, "transformer")


def transformer_2(model: Any) -> Tracing:
    """Describe how to trace the transformer of steps with little noise."""
    return trace_transformer(model.transformer_2, "transformer_2")


def trace_transformer(module: Any, role: str, text_len: int | None = None) -> Tracing:
    """Describe how to trace a transformer.

    Args:
        module: Module of diffusers.
        role: Name of the module in the pipeline.
        text_len: Number of tokens of a text, for a transformer that reads states of an image too; None for any.
    """
    config, rows = module.config, batch()
    _, *sides = config.patch_size
    height, width = (
        side * Dim(name, min=2, max=config.rope_max_seq_len)
        for side, name in zip(sides, ("patch_rows", "patch_columns"), strict=True)
    )
    inputs = {
        "hidden_states": torch.zeros(
            BATCH, config.in_channels, _FRAMES, ROWS * sides[0], COLUMNS * sides[1]
        ),
        "timestep": torch.zeros(BATCH),
        "encoder_hidden_states": torch.zeros(BATCH, _TOKENS, config.text_dim),
    }
    axes: dict[str, dict[int, Any]] = {}
    if config.image_dim and text_len:
        inputs["encoder_hidden_states"] = torch.zeros(BATCH, text_len, config.text_dim)
        inputs["encoder_hidden_states_image"] = torch.zeros(BATCH, _TOKENS, config.image_dim)
        axes = {
            "encoder_hidden_states": {0: rows},
            "encoder_hidden_states_image": {0: rows, 1: Dim("image_len", min=2)},
        }
    frames = Dim("latent_frames", min=2, max=config.rope_max_seq_len)
    return Tracing(
        module=PredictVelocity(module, role).eval(),
        inputs=inputs,
        dynamic_shapes={
            "hidden_states": {0: rows, 2: frames, 3: height, 4: width},
            "timestep": {0: rows},
            "encoder_hidden_states": {0: rows, 1: Dim("seq_len", min=2)},
            **axes,
        },
        input_names=[*inputs],
        output_names=["output"],
        then=_name_latents,
    )


def _name_latents(graph: Any) -> None:
    name_axes(graph, FRAME_AXES)


class DecodeFirst(nn.Module):
    """Call of the VAE's decoder for the first frame.

    Args:
        vae: Module of diffusers.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Tensor) -> tuple[Tensor, ...]:
        """Return the frame, and the features of all convolutions."""
        features: list[Any] = [None] * self.vae._cached_conv_counts["decoder"]
        frame = _decoded(self.vae, latent_sample, features, first=True)
        return (frame, *_both_frames(features))


class DecodeNext(nn.Module):
    """Call of the VAE's decoder for a later frame of latents.

    Args:
        vae: Module of diffusers.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Tensor, past_features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return frames, and the features of all convolutions."""
        features = [*past_features]
        frames = _decoded(self.vae, latent_sample, features, first=False)
        return (frames, *features)


def _decoded(vae: Any, latents: Tensor, features: list[Any], *, first: bool) -> Tensor:
    """Return decoded frames as `AutoencoderKLWan.decode` does, which changes the features in place."""
    frames = vae.decoder(
        vae.post_quant_conv(latents), feat_cache=features, feat_idx=[0], first_chunk=first
    )
    if vae.config.patch_size is not None:
        frames = unpatchify(frames, patch_size=vae.config.patch_size)
    return torch.clamp(frames, min=-1.0, max=1.0)


def _both_frames(features: Sequence[Any]) -> list[Tensor]:
    """Return the features of the first frame after one of zeros, which convolutions pad them with.

    Convolutions along the time alone do not read the first frame: their features are zeros. Each reads what the
    convolution before it returns, of the same shape as that one's features.
    """
    found: list[Tensor] = []
    for one in features:
        if one is None:  # diffusers counts convolutions that read a single frame, too
            break
        is_read = isinstance(one, Tensor)
        found.append(
            torch.cat([torch.zeros_like(one)] * (CACHE_T - 1) + [one], dim=2)
            if is_read
            else torch.zeros_like(found[-1])
        )
    return found


def vae_decoder(model: Any) -> Tracing:
    """Describe how to trace the decoder for the first frame."""
    vae = model.vae
    height, width = latent_sides(1)
    features = _features(vae)
    return Tracing(
        module=DecodeFirst(vae).eval(),
        inputs={"latent_sample": _latents(vae)},
        dynamic_shapes={"latent_sample": {0: batch(), 3: height, 4: width}},
        input_names=["latent_sample"],
        output_names=["sample", *feature_names("present", features)],
        then=partial(name_frames, _scales(features)),
    )


def vae_decoder_next(model: Any) -> Tracing:
    """Describe how to trace the decoder for all other frames."""
    vae, rows = model.vae, batch()
    height, width = latent_sides(1)
    features = _features(vae)
    scales = _scales(features)
    return Tracing(
        module=DecodeNext(vae).eval(),
        inputs={"latent_sample": _latents(vae), "past_features": features},
        dynamic_shapes={
            "latent_sample": {0: rows, 3: height, 4: width},
            "past_features": [{0: rows, 3: one * height, 4: one * width} for one in scales],
        },
        input_names=["latent_sample", *feature_names("past", features)],
        output_names=["sample", *feature_names("present", features)],
        then=partial(name_frames, scales),
    )


def _scales(features: Sequence[Tensor]) -> list[int]:
    """Return the number of features on a side for each latent."""
    return [one.shape[3] // ROWS for one in features]


def name_frames(scales: Sequence[int], graph: Any) -> None:
    """Name the axes of frames, and those of the features of each convolution by their number for a latent."""
    name_axes(graph, ("batch_size", None, None, "latent_height", "latent_width"), ["latent_sample"])
    name_axes(graph, ("batch_size", None, None, "height", "width"), ["sample"])
    for number, scale in enumerate(scales):
        sides = (f"latent_{name}" + f"_x{scale}" * (scale > 1) for name in ("height", "width"))
        names = [f"{prefix}_features_{number}" for prefix in ("past", "present")]
        name_axes(graph, ("batch_size", None, None, *sides), names)


def _latents(vae: Any) -> Tensor:
    return torch.zeros(BATCH, vae.config.z_dim, 1, ROWS, COLUMNS)


def _features(vae: Any) -> list[Tensor]:
    """Return example features of all convolutions."""
    _, *found = DecodeFirst(vae)(_latents(vae).to(next(vae.parameters()).device))
    return [torch.zeros(one.shape) for one in found]


def feature_names(prefix: str, features: Sequence[Tensor]) -> list[str]:
    """Return the names of features before or after a call."""
    return [f"{prefix}_features_{number}" for number in range(len(features))]
