# SPDX-License-Identifier: Apache-2.0
"""Tracing of the programs of Wan from an image: those of `wan_tracing`, and encoders of images.

image_encoder     IN   pixel_values (batch_size, 3, height, width) f32
                  OUT  penultimate_state (batch_size, image_len, width)
vae_encoder       IN   pixel_values (batch_size, 3, 1, height, width) f32, from -1 to 1
                  OUT  mean (batch_size, channels, 1, latent_height, latent_width)
                       present_features_N, of each convolution
vae_encoder_next  IN   pixel_values, of the frames of a later latent, and past_features_N
                  OUT  as vae_encoder
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify
from torch import Tensor, nn

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.families.wan_tracing import (
    COLUMNS,
    FRAME_AXES,
    ROWS,
    feature_names,
    name_frames,
    trace_transformer,
)
from qeff_zoo.tasks.diffusion.families.wan_tracing import text_encoder as text_encoder
from qeff_zoo.tasks.diffusion.families.wan_tracing import vae_decoder as vae_decoder
from qeff_zoo.tasks.diffusion.families.wan_tracing import vae_decoder_next as vae_decoder_next
from qeff_zoo.tasks.diffusion.tracing import BATCH, batch, latent_sides, name_axes

_TEXT = 512  # tokens of a text, which diffusers' transformer takes the last states for
_SIDES = ("height", "width")


def transformer(model: Any) -> Tracing:
    """Describe how to trace the transformer, or that of steps with much noise."""
    return trace_transformer(model.transformer, "transformer", text_len=_TEXT)


def transformer_2(model: Any) -> Tracing:
    """Describe how to trace the transformer of steps with little noise."""
    return trace_transformer(model.transformer_2, "transformer_2", text_len=_TEXT)


class EncodeImage(nn.Module):
    """Call of the encoder of images.

    Args:
        encoder: Module of transformers.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.image_encoder = encoder

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the states before the last layer."""
        found: Tensor = self.image_encoder(pixel_values, output_hidden_states=True).hidden_states[
            -2
        ]
        return found


def image_encoder(model: Any) -> Tracing:
    """Describe how to trace the encoder of images."""
    config = model.image_encoder.config
    side = config.image_size
    return Tracing(
        module=EncodeImage(model.image_encoder).eval(),
        inputs={"pixel_values": torch.zeros(BATCH, config.num_channels, side, side)},
        dynamic_shapes={"pixel_values": {0: batch()}},
        input_names=["pixel_values"],
        output_names=["penultimate_state"],
    )


class EncodeFrames(nn.Module):
    """Call of the VAE's encoder for the frames of one latent.

    Args:
        vae: Module of diffusers.
        kept: Number of frames of each convolution's features that a later call reads.
    """

    def __init__(self, vae: Any, kept: Sequence[int]) -> None:
        super().__init__()
        self.vae, self.kept = vae, kept

    def forward(
        self, pixel_values: Tensor, past_features: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return the mean of the latents, and the features of all convolutions."""
        every: list[Any] = [None] * self.vae._cached_conv_counts["encoder"]
        every[: len(past_features)] = past_features
        if self.vae.config.patch_size is not None:
            pixel_values = patchify(pixel_values, patch_size=self.vae.config.patch_size)
        found = self.vae.encoder(pixel_values, feat_cache=every, feat_idx=[0])
        mean, _ = self.vae.quant_conv(found).chunk(2, dim=1)
        features = [one for one in every if one is not None]
        return (mean, *map(_filled, features, self.kept or [1] * len(features)))


def _filled(features: Tensor, frames: int) -> Tensor:
    """Return features with frames of zeros before them, which convolutions pad them with."""
    missing = frames - features.shape[2]
    return torch.cat([torch.zeros_like(features)] * missing + [features], dim=2)


def _example(vae: Any, frames: int) -> Tensor:
    factor = vae.config.scale_factor_spatial
    return torch.zeros(BATCH, 3, frames, ROWS * factor, COLUMNS * factor)


def _features(vae: Any) -> list[Tensor]:
    """Return example features of all convolutions, with as many frames as a later call returns."""
    device = next(vae.parameters()).device
    module = EncodeFrames(vae, ())
    _, *first = module(_example(vae, 1).to(device))
    every: list[Any] = [None] * vae._cached_conv_counts["encoder"]
    every[: len(first)] = first
    pixels = _example(vae, vae.config.scale_factor_temporal).to(device)
    if vae.config.patch_size is not None:
        pixels = patchify(pixels, patch_size=vae.config.patch_size)
    vae.encoder(pixels, feat_cache=every, feat_idx=[0])
    return [torch.zeros(one.shape) for one in every if one is not None]


def vae_encoder(model: Any) -> Tracing:
    """Describe how to trace the encoder for the first frame."""
    return _encoder(model.vae, 1)


def vae_encoder_next(model: Any) -> Tracing:
    """Describe how to trace the encoder for all other frames."""
    return _encoder(model.vae, model.vae.config.scale_factor_temporal)


def _encoder(vae: Any, frames: int) -> Tracing:
    features = _features(vae)
    factor, rows = vae.config.scale_factor_spatial, batch()
    height, width = latent_sides(1)
    inputs: dict[str, Any] = {"pixel_values": _example(vae, frames)}
    shapes: dict[str, Any] = {"pixel_values": {0: rows, 3: factor * height, 4: factor * width}}
    scales = [one.shape[3] // ROWS for one in features]
    names = feature_names("past", features)
    if frames > 1:
        inputs["past_features"] = features
        shapes["past_features"] = [{0: rows, 3: one * height, 4: one * width} for one in scales]

    def name(graph: Any) -> None:
        name_frames(scales, graph)
        name_axes(graph, ("batch_size", None, None, *_SIDES), ["pixel_values"])
        name_axes(graph, FRAME_AXES, ["mean"])

    return Tracing(
        module=EncodeFrames(vae, [one.shape[2] for one in features]).eval(),
        inputs=inputs,
        dynamic_shapes=shapes,
        input_names=["pixel_values", *(names if frames > 1 else ())],
        output_names=["mean", *feature_names("present", features)],
        then=name,
    )
